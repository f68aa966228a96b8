"""Which commit is the best, by what the metrics say: a pure reading, so no state of its own."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ppojob_api.v1alpha1.schedule import BestCommitSpec
from ppojob_trainer import durable


@dataclass(frozen=True)
class BestCommit:
    """Finds the best of some steps.

    Attributes:
        spec: the metric, and which way is better.
        metrics: metrics.jsonl; every step that is committed has its line there.
    """

    spec: BestCommitSpec
    metrics: Path

    def among(self, steps: Collection[int]) -> int | None:
        """The step with the best value; of equal ones the first; None where no step has one.

        Args:
            steps: that are committed.
        """
        sign = 1.0 if self.spec.mode == "max" else -1.0
        found: tuple[float, int] | None = None
        for line in durable.read_lines(self.metrics):
            record = msgspec.json.decode(line, type=dict[str, float | None])
            step, value = record["step"], record.get(self.spec.metric)  # null is not a number
            if step is None or value is None or int(step) not in steps:
                continue
            if found is None or sign * value > found[0]:
                found = (sign * value, int(step))
        return None if found is None else found[1]
