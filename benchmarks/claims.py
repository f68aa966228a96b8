"""The form of a measured claim, shared by the benchmarks and `bench.py`."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Claim:
    """What is to be shown: `holds` compares a value with the target in the right direction."""

    name: str
    target: float
    unit: str
    at_least: bool

    def entry(self, value: float | None) -> dict[str, float | str | bool | None]:
        """The entry of bench.json; without a (finite) value it does not hold."""
        if value is not None and not math.isfinite(value):
            value = None
        return {
            "value": value,
            "target": self.target,
            "unit": self.unit,
            "holds": value is not None and self.is_met_by(value),
        }

    def is_met_by(self, value: float) -> bool:
        return value >= self.target if self.at_least else value <= self.target


def write_claims(path: Path, measured: dict[Claim, float]) -> None:
    """What a benchmark hands to bench.py: its part of bench.json."""
    entries = {claim.name: claim.entry(value) for claim, value in measured.items()}
    path.write_text(json.dumps(entries, indent=2) + "\n")
