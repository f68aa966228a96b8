"""Where the rows of a step come from: one round of generation, or whatever else makes a batch."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from ppojob_api.v1alpha1.algorithm import AlgorithmSpec
from ppojob_trainer.controller.batch import Batch
from ppojob_trainer.controller.rollout_stages import RolloutStages
from ppojob_trainer.data.prompt_store import PromptRow
from ppojob_trainer.metrics.timer import StepTimer

Draw = Callable[[int], list[PromptRow]]
"""Draws so many further prompts."""


@dataclass(frozen=True, slots=True)
class Rows:
    """What a step trains on.

    Attributes:
        batch: the rows.
        greedy: greedy responses to their prompts, where somebody reads those.
        is_kept: whether they are scored, and on the disk, already.
        metrics: how they came about, by name of the metric.
    """

    batch: Batch
    greedy: Batch | None = None
    is_kept: bool = False
    metrics: dict[str, float] = field(default_factory=dict)


class BatchSource(Protocol):
    """Makes the rows of each step."""

    def rows(self, step: int, draw: Draw, timer: StepTimer) -> Rows:
        """Make them; for a step that is begun again, the same.

        Args:
            step: number of the step.
            draw: the job's prompts, in their order.
            timer: takes the seconds of each stage.
        """


@dataclass(frozen=True)
class OneRound:
    """Draws as many prompts as a step has, and generates; scoring is left to the step.

    Attributes:
        stages: generation and scoring.
        algorithm: the job's, nothing left open.
    """

    stages: RolloutStages
    algorithm: AlgorithmSpec

    def rows(self, step: int, draw: Draw, timer: StepTimer) -> Rows:
        """Generate responses to prompts that nobody has chosen."""
        owners = len(self.stages.actor.ranks)
        with timer("data"):
            prompts = draw(self.algorithm.prompts_per_step)
        batch = Batch("train", prompts, self.algorithm.samples_per_prompt, owners)
        has_greedy = self.algorithm.estimator.has_greedy
        greedy = Batch("greedy", prompts, 1, owners) if has_greedy else None
        self.stages.generate(batch, step, greedy, timer)
        return Rows(batch, greedy)
