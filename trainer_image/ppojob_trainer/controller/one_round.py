"""One round of generation: the rows of a step, drawn when it begins."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ppojob_api.v1alpha1.algorithm import AlgorithmSpec
from ppojob_trainer.controller.batch import Batch
from ppojob_trainer.controller.rollout_stages import Drawn, RolloutStages
from ppojob_trainer.data.prompt_store import PromptRow
from ppojob_trainer.metrics.timer import StepTimer

Draw = Callable[[int], list[PromptRow]]
"""Draws so many further prompts of the job, in their order."""


@dataclass(frozen=True, slots=True)
class Rows:
    """What a step trains on.

    Attributes:
        greedy: greedy responses to the prompts of the batch, where somebody reads those.
        is_kept: whether they are scored, and on the disk, already.
        metrics: how they were sampled, by name of the metric.
        rounds: in which they were drawn, where there may be several.
    """

    batch: Batch
    greedy: Batch | None = None
    is_kept: bool = False
    metrics: dict[str, float] = field(default_factory=dict)
    rounds: Sequence[Batch] = ()


@dataclass(frozen=True)
class OneRound:
    """Draws as many prompts as a step has, and generates; the step does the scoring."""

    stages: RolloutStages
    algorithm: AlgorithmSpec

    def rows(self, step: int, draw: Draw, timer: StepTimer) -> Rows:
        """Make the rows of a step; the same for a step that is begun again."""
        with timer("data"):
            prompts = draw(self.algorithm.prompts_per_step)
        batch, greedy = self.batches(prompts)
        self.stages.generate(batch, step, greedy, timer)
        return Rows(batch, greedy)

    def batches(self, prompts: list[PromptRow]) -> Drawn:
        """What is drawn for the prompts of a step."""
        owners = len(self.stages.actor.ranks)
        batch = Batch("train", prompts, self.algorithm.samples_per_prompt, owners)
        has_greedy = self.algorithm.estimator.has_greedy
        return batch, Batch("greedy", prompts, 1, owners) if has_greedy else None
