"""Workers: the ranks, processes that hold models and rows, or score responses.

`main` starts the process; each role is one class that answers requests by its routes.
"""
