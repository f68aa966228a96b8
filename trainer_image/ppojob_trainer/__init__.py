"""The processes of a job: controller, supervisors, ranks; everything that trains."""

from functools import cache


@cache
def version() -> str:
    """The version that is installed."""
    # Most processes never ask, and this takes as long as all else that a small child loads.
    from importlib.metadata import version as installed

    return installed("ppojob")
