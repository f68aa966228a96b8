"""Which commit is the best, by what the metrics say: a pure reading, so no state of its own."""

import difflib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from ppojob_api.problem import printable, shown
from ppojob_api.v1alpha1.schedule import BestCommitSpec
from ppojob_trainer import durable
from ppojob_trainer.errors import ConfigError

_NAMES_TOLD: Final = 3


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
        for record in self._records():
            step, value = record["step"], record.get(self.spec.metric)  # null is not a number
            if step is None or value is None or int(step) not in steps:
                continue
            if found is None or sign * value > found[0]:
                found = (sign * value, int(step))
        return None if found is None else found[1]

    def refuse_unknown(self, validation: Mapping[str, float]) -> None:
        """Refuse a metric that no validation has: no commit would ever be the best by it.

        A later validation may lack it, where a reward function does not always tell its variable.

        Args:
            validation: metrics of one that has no record yet.

        Raises:
            ConfigError: neither it nor an earlier one has the metric.
        """
        name = self.spec.metric
        if name in validation or any(name in record for record in self._records()):
            return
        near = ", ".join(difflib.get_close_matches(name, validation, n=_NAMES_TOLD, cutoff=0.0))
        raise ConfigError(
            printable(
                f"spec.checkpoint.best.metric: got {shown(name)}: the validation has no such "
                f"metric; one that it has, such as {near}"
            )
        )

    def _records(self) -> Iterator[dict[str, float | None]]:
        decoder = msgspec.json.Decoder(dict[str, float | None])
        return map(decoder.decode, durable.read_lines(self.metrics))
