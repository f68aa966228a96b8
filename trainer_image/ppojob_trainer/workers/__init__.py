"""The ranks: processes that hold models and rows, or score responses, and do what they are asked.

`main` is the process; each role is one class that answers with its routes.
"""
