"""The critic: the values that advantages are measured by, and how it learns them."""

import torch
from transformers import PreTrainedModel

from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_trainer.engine.train_engine import TrainEngine
from ppojob_trainer.engine.value_head import ValueHead
from ppojob_trainer.engine.value_objective import ValueObjective
from ppojob_trainer.metrics.pass_statistics import PassStatistics
from ppojob_trainer.models.load import load_value_model
from ppojob_trainer.parallel.world import World
from ppojob_trainer.rpc.messages.training import Update
from ppojob_trainer.workers.batch_rows import BatchRows
from ppojob_trainer.workers.learner import Learner


class Critic:
    """The value model in training.

    Args:
        learner: its weights and optimizer.
        objective: what it minimizes.
    """

    def __init__(self, learner: Learner, objective: ValueObjective) -> None:
        self.learner = learner
        self._objective = objective

    def forward(self, rows: BatchRows) -> PassStatistics:
        """Fill in `values`."""
        rows.fill("values", self.learner.engine.predict)
        return PassStatistics()

    def update(self, rows: BatchRows, request: Update) -> PassStatistics:
        """One optimizer step."""
        staged = rows.staged(request.prompts, ("values", "returns"))
        return self.learner.engine.update(staged, self._objective)


def open_critic(spec: PPOJobSpec, world: World) -> Critic:
    """Load the critic as the job begins with it."""
    assert spec.critic is not None, "a job without a critic has no such role"
    assert spec.critic.path is not None, "a resolved configuration says which model"
    critic, path = spec.critic, spec.critic.path
    dtype = torch.float32 if spec.model.dtype == "float32" else torch.bfloat16

    def train(model: PreTrainedModel, total_updates: int) -> TrainEngine:
        return TrainEngine(
            model, ValueHead(), spec.training, critic.optimizer, total_updates, world
        )

    learner = Learner(
        role="critic",
        world=world,
        seed=spec.seed,
        load=lambda: load_value_model(path, dtype, world=world),
        train=train,
    )
    limit = spec.data.max_response_tokens
    return Critic(learner, ValueObjective.of(critic, spec.algorithm, max_response_tokens=limit))
