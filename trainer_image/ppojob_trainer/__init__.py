"""The processes of a job: controller, supervisors, ranks; everything that trains."""

from importlib.metadata import version

__version__ = version("ppojob")
