"""Validation: held-out prompts, generated greedily or as `rollout.validation` says, and scored."""

from dataclasses import dataclass

from ppojob_trainer.controller.batch import Batch
from ppojob_trainer.controller.rollout_stages import RolloutStages
from ppojob_trainer.data.dataset import PromptDataset

PURPOSE = "validation"


@dataclass(frozen=True)
class Evaluation:
    """Validates the current weights.

    Attributes:
        stages: generation and scoring.
        dataset: the held-out prompts.
        samples: responses a prompt.
    """

    stages: RolloutStages
    dataset: PromptDataset
    samples: int

    def run(self, step: int) -> Batch:
        """Generate, score and keep all held-out prompts with the weights after `step`."""
        prompts = self.dataset.rows(range(len(self.dataset)))
        batch = Batch(PURPOSE, prompts, self.samples, owners=len(self.stages.actor.ranks))
        self.stages.generate(batch, step)
        self.stages.score(batch, step)
        self.stages.keep(batch, step)
        return batch
