"""Compact formatting of numbers for people."""

import itertools
import re
from collections.abc import Sequence
from typing import Final, TypeVar

T = TypeVar("T")

BLOCKS: Final = tuple(chr(0x2581 + level) for level in range(8))
"""Lower one eighth block to full block."""

ASCII_BLOCKS: Final = tuple("_.-~=+*#")

_UNITS: Final = (86_400, 3_600, 60, 1)
_WRITTEN: Final = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")


def number(value: float) -> str:
    """Format a number with about three significant digits."""
    size = abs(value)
    if size >= 1_000:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    if size >= 0.001 or value == 0.0:
        return f"{value:.3f}"
    return f"{value:.1e}"


def duration(seconds: float) -> str:
    """Format a duration by its two largest units."""
    if seconds < 0.0995:
        return f"{max(0.0, seconds) * 1_000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3_600:
        return f"{whole // 60} min {whole % 60:02} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02} min"


def seconds_of(text: str) -> int | None:
    """Parse a duration of Kubernetes (`1h30m`, `45s`) to seconds; None if it is invalid."""
    match = _WRITTEN.fullmatch(text.replace(" ", ""))
    if match is None or not text:
        return None
    parts = zip(match.groups(), _UNITS, strict=True)
    return sum(int(part or 0) * unit for part, unit in parts)


def sparkline(values: Sequence[float], width: int, blocks: Sequence[str] = BLOCKS) -> str:
    """Draw a curve in one line; neighbours are averaged if there are too many values.

    `blocks` are characters from the smallest to the largest value.
    """
    if not values or width < 1:
        return ""
    points = [sum(own) / len(own) for own in parts_of(values, width)]
    low, high = min(points), max(points)
    if not high > low:
        return blocks[len(blocks) // 2] * len(points)
    levels = len(blocks) - 1
    return "".join(blocks[round((point - low) / (high - low) * levels)] for point in points)


def parts_of(items: Sequence[T], most: int) -> list[Sequence[T]]:
    """Split items, of which there are some, into at most so many parts of about equal size."""
    count = min(most, len(items))
    bounds = itertools.pairwise(part * len(items) // count for part in range(count + 1))
    return [items[first:last] for first, last in bounds]
