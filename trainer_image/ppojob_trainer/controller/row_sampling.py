"""Custom samplers: a user's function selects the rows of a step by earlier scores (ADR 96).

Its inputs and state are in `Progress`, so a resumed run selects the same rows.
"""

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt

from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_trainer.algorithms.prompt_values import PRIOR, first_belief, value
from ppojob_trainer.checkpoint.manifest import Progress
from ppojob_trainer.controller.batch import Batch
from ppojob_trainer.data.dataset import PromptDataset
from ppojob_trainer.data.row_sampler import RowSampler
from ppojob_trainer.data.score_history import after_step, columns
from ppojob_trainer.rewards.records import DROPPED


@dataclass
class RowSampling:
    """Calls the sampler once per step, and returns the selected rows."""

    sampler: RowSampler
    seed: int
    most: int  # maximum number of rows of a step
    first: npt.NDArray[np.float64]  # (rows,) initial values
    prompt_digests: Sequence[str]  # (rows,) prompt digests if values are tracked; else empty
    _before: Progress | None = None
    _selected: list[int] = field(default_factory=list)
    _used: int = 0
    _state: str = ""

    @classmethod
    def of(
        cls, spec: PPOJobSpec, dataset: PromptDataset, stack: contextlib.ExitStack
    ) -> "RowSampling | None":
        """Build the sampler of a job, or None; ConfigError if there is no such function."""
        settings, algorithm = spec.prompts.sampler, spec.algorithm
        if settings is None:
            return None
        sampler = stack.enter_context(RowSampler(settings, dataset))
        sampler.open()
        first, digests = np.full(len(dataset), value(PRIOR)), list[str]()
        if spec.prompts.scores_key is not None or algorithm.estimator.tracks_values:
            for number in range(len(dataset)):
                row = dataset[number]
                first[number] = value(first_belief(row.known_scores, decay=0.0))
                if algorithm.estimator.tracks_values:
                    digests.append(row.prompt_digest)
        return cls(sampler, spec.prompts.seed or 0, algorithm.most_drawn, first, digests)

    def begin(self, progress: Progress) -> None:
        """Begin or repeat the step after a state."""
        self._before, self._selected, self._used = progress, [], 0

    def next(self, count: int) -> list[int]:
        """Return the next `count` rows of the step; SamplerFailed if the function failed."""
        assert self._before is not None, "a step has begun"
        if not self._selected:
            history = columns(self._before.rows_seen, self.first)
            known = self._before.prompt_values
            for row, digest in enumerate(self.prompt_digests):
                history["value"][row] = value(known[digest]) if digest in known else self.first[row]
            self._selected, self._state = self.sampler.choose(
                self._before.step + 1, self.seed, self.most, history, self._before.sampler_state
            )
        first, self._used = self._used, self._used + count
        return self._selected[first : self._used]

    def after(self, trained: Progress, drawn: Sequence[Batch]) -> Progress:
        """Return the state after a step, with the scores of its rows."""
        scored = [one for batch in drawn for one in _scores(batch)]
        seen = after_step(trained.rows_seen, trained.step, scored)
        return msgspec.structs.replace(trained, rows_seen=seen, sampler_state=self._state)


def _scores(batch: Batch) -> Iterator[tuple[int, list[float]]]:
    values = batch.values()
    for position, prompt in enumerate(batch.prompts):
        first = position * batch.samples
        scored = [
            batch.scores[row]
            for row in range(first, first + batch.samples)
            if not values[row].get(DROPPED) and math.isfinite(batch.scores[row])
        ]
        yield prompt.index, scored
