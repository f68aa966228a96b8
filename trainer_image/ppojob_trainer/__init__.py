"""The processes of a job: controller, supervisors and ranks."""

from functools import cache


@cache
def version() -> str:
    """Return the installed version."""
    from importlib.metadata import version as installed  # slow to import, and rarely needed

    return installed("ppojob")
