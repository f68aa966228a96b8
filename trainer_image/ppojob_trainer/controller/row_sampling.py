"""Custom samplers: a user's function selects the rows of a step by earlier scores (ADR 96).

Its input and state are in each checkpoint, so that a resumed run selects the same rows again.
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
    """Calls the sampler once per step, and hands out the selected rows.

    Attributes:
        most: most rows that a step may draw.
        first: (rows,) initial value of each, before it has a score.
        prompt_digests: (rows,) of each row, where values of prompts are tracked; else empty.
    """

    sampler: RowSampler
    seed: int
    most: int
    first: npt.NDArray[np.float64]
    prompt_digests: Sequence[str]
    _before: Progress | None = None
    _chosen: list[int] = field(default_factory=list)
    _dealt: int = 0
    _state: str = ""

    @classmethod
    def of(
        cls, spec: PPOJobSpec, dataset: PromptDataset, stack: contextlib.ExitStack
    ) -> "RowSampling | None":
        """Build the sampler of a job; None if rows follow the data order.

        Raises:
            ConfigError: there is no such function.
        """
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
        """Begin the step after a state, or repeat it."""
        self._before, self._chosen, self._dealt = progress, [], 0

    def next(self, count: int) -> list[int]:
        """Return the next `count` rows of the step.

        Raises:
            SamplerFailed: the function did not select them.
        """
        assert self._before is not None, "a step has begun"
        if not self._chosen:
            told, known = columns(self._before.rows_seen, self.first), self._before.prompt_values
            for row, digest in enumerate(self.prompt_digests):
                told["value"][row] = value(known[digest]) if digest in known else self.first[row]
            step, state = self._before.step + 1, self._before.sampler_state
            self._chosen, self._state = self.sampler.choose(step, self.seed, self.most, told, state)
        first, self._dealt = self._dealt, self._dealt + count
        return self._chosen[first : self._dealt]

    def after(self, trained: Progress, drawn: Sequence[Batch]) -> Progress:
        """Return the state after a step, with the scores of its rows."""
        scored = [one for batch in drawn for one in _scores(batch)]
        seen = after_step(trained.rows_seen, trained.step, scored)
        return msgspec.structs.replace(trained, rows_seen=seen, sampler_state=self._state)


def _scores(batch: Batch) -> Iterator[tuple[int, list[float]]]:
    """Return the rows of a batch with the scores of their scored responses."""
    values = batch.values()
    for position, prompt in enumerate(batch.prompts):
        first = position * batch.samples
        scored = [
            batch.scores[row]
            for row in range(first, first + batch.samples)
            if not values[row].get(DROPPED) and math.isfinite(batch.scores[row])
        ]
        yield prompt.index, scored
