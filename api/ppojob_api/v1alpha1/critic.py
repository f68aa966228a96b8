"""The value model of PPO: where it comes from and how it is trained."""

from typing import Annotated

from pydantic import Field

from ppojob_api.v1alpha1.section import Count, Path, Section
from ppojob_api.v1alpha1.training import LearningRate, OptimizerSpec


class CriticOptimizerSpec(OptimizerSpec):
    """The critic's AdamW and its schedule; only the default of the learning rate differs."""

    learning_rate: LearningRate = 1e-5
    """Peak learning rate. verl: critic.optim.lr, 1e-5."""


class CriticSpec(Section):
    """The value model of `type: ppo`: a model with one output a token."""

    path: Path | None = None
    """Folder in Hugging Face form; absent: the policy's, with a new value head.
    verl: critic.model.path."""

    optimizer: CriticOptimizerSpec = CriticOptimizerSpec()
    """How it is optimised."""

    value_clip: Annotated[float, Field(gt=0, le=1_000_000)] = 0.5
    """A value that the update moved further than this from the one before it is pulled no further
    (PPO2 of OpenAI Baselines). verl: critic.cliprange_value, 0.5."""

    warmup_steps: Annotated[int, Field(ge=0, le=1_000_000_000)] = 0
    """First training steps, in which only the critic trains.
    verl: trainer.critic_warmup, one less than there."""

    epochs: Annotated[int, Field(ge=1, le=1_000)] | None = None
    """Passes over a step's experience; absent: algorithm.epochs. verl: critic.ppo_epochs."""

    mini_batch_prompts: Count | None = None
    """Prompts of one optimizer step; absent: algorithm.miniBatchPrompts.
    verl: critic.ppo_mini_batch_size."""
