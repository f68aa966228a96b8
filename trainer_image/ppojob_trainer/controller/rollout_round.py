"""One generation round per step: the rows are generated when the step begins."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ppojob_api.v1alpha1.algorithm import AlgorithmSpec
from ppojob_trainer.controller.batch import Batch
from ppojob_trainer.controller.rollout_stages import Drawn, RolloutStages
from ppojob_trainer.data.prompt_store import PromptRow
from ppojob_trainer.metrics.timer import StepTimer

Draw = Callable[[int], list[PromptRow]]
"""Returns the next prompts of the job in their order, as many as asked for."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows that a step trains on.

    Attributes:
        greedy: greedy responses to the prompts of the batch, if a baseline reads them.
        is_recorded: whether they are already scored and recorded on disk.
        metrics: sampling metrics, by name.
        rounds: the generation rounds, if there may be several.
    """

    batch: Batch
    greedy: Batch | None = None
    is_recorded: bool = False
    metrics: dict[str, float] = field(default_factory=dict)
    rounds: Sequence[Batch] = ()


@dataclass(frozen=True)
class RolloutRound:
    """Takes the step's prompts from the data and generates; the step does the scoring."""

    stages: RolloutStages
    algorithm: AlgorithmSpec

    def rows(self, step: int, draw: Draw, timer: StepTimer) -> Rows:
        """Generate the rows of a step; a repeated step gets the same rows."""
        with timer("data"):
            prompts = draw(self.algorithm.prompts_per_step)
        batch, greedy = self.batches(prompts)
        self.stages.generate(batch, step, greedy, timer)
        return Rows(batch, greedy)

    def batches(self, prompts: list[PromptRow]) -> Drawn:
        """Return the batches to generate for the prompts of a step."""
        owners = len(self.stages.actor.ranks)
        batch = Batch("train", prompts, self.algorithm.samples_per_prompt, owners)
        has_greedy = self.algorithm.estimator.has_greedy
        return batch, Batch("greedy", prompts, 1, owners) if has_greedy else None
