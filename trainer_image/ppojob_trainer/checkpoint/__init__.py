"""Checkpoints of the whole job: a killed job resumes bit-equal to one that never stopped.

``store`` and ``journal`` are for the controller and do not import torch; ``tensors`` and ``export``
are for the ranks that own the weights.
"""
