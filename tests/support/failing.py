"""Failpoints of this process."""

from collections.abc import Iterator
from contextlib import contextmanager

from ppojob_trainer import failpoints


@contextmanager
def failing_at(point: str) -> Iterator[None]:
    """A failpoint raises until the block ends."""
    failpoints.arm({failpoints.ENABLE_VARIABLE: "1", failpoints.POINT_VARIABLE: f"{point}=raise"})
    try:
        yield
    finally:
        failpoints.arm({})
