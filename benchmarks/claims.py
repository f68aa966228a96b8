"""What is to be shown by measuring, and how a measured value becomes an entry of bench.json."""

from __future__ import annotations

import dataclasses
import math

Entry = dict[str, float | str | bool | None]


@dataclasses.dataclass(frozen=True)
class Claim:
    """A figure of a benchmark and its target.

    Attributes:
        name: key in bench.json.
        figure: which figure of the benchmark's report carries the value.
        target: what the value is held against.
        unit: of value and target.
        at_least: whether more is better.
    """

    name: str
    figure: str
    target: float
    unit: str
    at_least: bool

    def entry(self, value: float | None) -> Entry:
        """The entry of bench.json; without a (finite) value the claim does not hold."""
        if value is not None and not math.isfinite(value):
            value = None
        return {
            "value": value,
            "target": self.target,
            "unit": self.unit,
            "holds": value is not None and self._is_met_by(value),
        }

    def _is_met_by(self, value: float) -> bool:
        return value >= self.target if self.at_least else value <= self.target
