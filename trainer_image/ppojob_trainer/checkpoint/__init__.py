"""One checkpoint of everything: what makes a killed job equal to one that was never disturbed.

``store`` and ``journal`` are for the controller and load no torch; ``tensors`` and ``export``
are for the ranks that own the weights.
"""
