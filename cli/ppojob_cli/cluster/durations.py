"""Lengths of time as people and Kubernetes write them: `5m`, `1h30m`, `45s`."""

import re
from typing import Final

_UNITS: Final = (86_400, 3_600, 60, 1)
_FORM: Final = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")


def seconds_of(text: str) -> int | None:
    """Seconds of a written time; None where it is none."""
    match = _FORM.fullmatch(text.replace(" ", ""))
    if match is None or not text:
        return None
    parts = zip(match.groups(), _UNITS, strict=True)
    return sum(int(part or 0) * unit for part, unit in parts)
