"""How a job gets its resources: all of them or none."""

from typing import Annotated

from pydantic import Field

from ppojob_api.v1alpha1.section import Section


class SchedulingSpec(Section):
    """What becomes of a job that finds room for some of its pods only; a cluster reads it."""

    start_deadline_seconds: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    """A job whose pods are placed in part alone gives them all back after this time, and tries
    again after the same; null: it waits, and holds what it has."""
