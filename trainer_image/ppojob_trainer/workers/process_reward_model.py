"""Process reward model of PRIME: a language model trained on the outcomes of responses.

The reward of a token is its log-probability ratio to a reference: the model's initial state, or
another model that it was made from.
"""

from typing import Final

import torch

from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_trainer.engine.forward_engine import ForwardEngine
from ppojob_trainer.engine.fused_logprobs import LogprobSettings
from ppojob_trainer.engine.head import PolicyHead, TokenOutputs
from ppojob_trainer.engine.value_objective import OutcomeObjective
from ppojob_trainer.metrics.pass_statistics import PassStatistics
from ppojob_trainer.models.kinds import PROCESS_REWARD
from ppojob_trainer.parallel.offload import Resident
from ppojob_trainer.parallel.world import World
from ppojob_trainer.rows.experience import Experience
from ppojob_trainer.rpc.messages.training import Update
from ppojob_trainer.workers.batch_rows import BatchRows
from ppojob_trainer.workers.learner import (
    Learner,
    TrainedModel,
    critic_learner,
    load_for,
    resident_weights,
)
from ppojob_trainer.workers.reference import BaseEngine

CRITIC_REFERENCE: Final = "critic_reference"
"""Name of the reference in requests."""


class CriticReference:
    """The frozen reference of the process reward model."""

    def __init__(self, engine: ForwardEngine, resident: Resident) -> None:
        self._engine = engine
        self.resident = resident

    def forward(self, rows: BatchRows) -> PassStatistics:
        """Fill in `critic_ref_logprobs`."""
        rows.fill("critic_ref_logprobs", self._engine.predict)
        return PassStatistics()


class ProcessRewardModel(TrainedModel):
    """The process reward model in training."""

    def __init__(self, learner: Learner, beta: float) -> None:
        super().__init__(learner)
        self._objective = OutcomeObjective(beta)

    def forward(self, rows: BatchRows) -> PassStatistics:
        """Fill in `process_rewards`."""
        rows.fill("process_rewards", self._rewards, read=("critic_ref_logprobs",))
        return PassStatistics()

    def update(self, rows: BatchRows, request: Update) -> PassStatistics:
        """Run one optimizer step; rows without an outcome are excluded."""
        lengths = torch.tensor(rows.index.lengths, dtype=torch.int64)
        rows.set_column("outcomes", torch.tensor(request.outcomes).repeat_interleave(lengths))
        staged = rows.mini_batch(request.prompts, ("critic_ref_logprobs", "outcomes"))
        assert staged.outcomes is not None, "set above"
        staged.mask = staged.mask & ~staged.outcomes.isnan()
        return self.learner.engine.update(staged, self._objective)

    def _rewards(self, rows: Experience) -> TokenOutputs:
        assert rows.critic_ref_logprobs is not None, "the reference runs first"
        logprobs = self.learner.engine.predict(rows)[0]
        return (self._objective.beta * (logprobs - rows.critic_ref_logprobs),)


def open_process_reward_model(
    spec: PPOJobSpec, world: World
) -> tuple[ProcessRewardModel, CriticReference]:
    """Load it and its reference, which with adapters may be the base weights."""
    critic, role, prime = spec.critic, spec.roles.critic, spec.algorithm.prime
    assert critic is not None, "of PRIME"
    assert role is not None, "set in a resolved configuration"
    assert prime is not None, "of PRIME"
    training, reference = spec.training, spec.critic_paths[-1]
    # Log-probabilities of all tokens, at temperature 1 whatever the engines' temperature.
    head = PolicyHead(LogprobSettings(chunk_tokens=training.logprob_chunk_tokens))
    learner = critic_learner(spec, world, PROCESS_REWARD, head)
    trained = ProcessRewardModel(learner, prime.beta)
    if critic.lora is not None and reference == critic.path:
        base = BaseEngine(learner.model, head, training, world)
        return trained, CriticReference(base, learner.resident)
    loaded = load_for(spec, reference, world, PROCESS_REWARD)
    resident = resident_weights(loaded, offloads="weights" in role.offload)
    return trained, CriticReference(ForwardEngine(loaded, head, training, world), resident)
