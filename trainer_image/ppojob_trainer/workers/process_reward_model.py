"""The process reward model of PRIME: a language model that learns the outcomes of responses.

What it has learnt beyond the model that it began as tells which tokens lead there.
"""

from functools import partial
from typing import Final

import torch
from transformers import PreTrainedModel

from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_trainer.engine.forward_engine import ForwardEngine
from ppojob_trainer.engine.fused_logprobs import LogprobSettings
from ppojob_trainer.engine.head import PolicyHead, TokenOutputs
from ppojob_trainer.engine.outcome_objective import OutcomeObjective
from ppojob_trainer.engine.train_engine import TrainEngine
from ppojob_trainer.metrics.pass_statistics import PassStatistics
from ppojob_trainer.models.config_changes import config_changes
from ppojob_trainer.models.kinds import PROCESS_REWARD
from ppojob_trainer.models.load import load_model
from ppojob_trainer.parallel.offload import Resident
from ppojob_trainer.parallel.world import World
from ppojob_trainer.rollout.protocol import DTYPES
from ppojob_trainer.rows.experience import Experience
from ppojob_trainer.rpc.messages.training import Update
from ppojob_trainer.workers.batch_rows import BatchRows
from ppojob_trainer.workers.learner import Learner, resident_weights
from ppojob_trainer.workers.reference import BaseEngine

PRIOR: Final = "critic_prior"
"""By which requests name the model as it was before training."""


class Prior:
    """The model as it was before training; beside adapters its weights without them."""

    def __init__(self, engine: ForwardEngine, resident: Resident) -> None:
        self._engine = engine
        self.resident = resident

    def forward(self, rows: BatchRows) -> PassStatistics:
        """Fill in `prior_logprobs`."""
        rows.fill("prior_logprobs", self._engine.predict)
        return PassStatistics()


class ProcessRewardModel:
    """The model in training."""

    def __init__(self, learner: Learner, beta: float) -> None:
        self.learner = learner
        self._objective = OutcomeObjective(beta)

    @property
    def at_update(self) -> tuple[Resident, ...]:
        """The models whose weights an update computes with."""
        return (self.learner.resident,)

    def forward(self, rows: BatchRows) -> PassStatistics:
        """Fill in `process_rewards`."""
        rows.fill("process_rewards", self._rewards, read=("prior_logprobs",))
        return PassStatistics()

    def update(self, rows: BatchRows, request: Update) -> PassStatistics:
        """One optimizer step; rows without an outcome have no part in it."""
        lengths = torch.tensor(rows.index.lengths, dtype=torch.int64)
        rows.keep("outcomes", torch.tensor(request.outcomes).repeat_interleave(lengths))
        staged = rows.staged(request.prompts, ("prior_logprobs", "outcomes"))
        assert staged.outcomes is not None, "they were kept"
        staged.mask = staged.mask & ~staged.outcomes.isnan()
        return self.learner.engine.update(staged, self._objective)

    def _rewards(self, rows: Experience) -> TokenOutputs:
        assert rows.prior_logprobs is not None, "the model as it began comes first"
        (logprobs,) = self.learner.engine.predict(rows)
        return (self._objective.beta * (logprobs - rows.prior_logprobs),)


def open_process_reward_model(spec: PPOJobSpec, world: World) -> tuple[ProcessRewardModel, Prior]:
    """Load it as the job begins with it, twice where it has no adapters."""
    critic, role, prime = spec.critic, spec.roles.critic, spec.algorithm.prime
    assert critic is not None, "no other algorithm has one"
    assert critic.path is not None, "a resolved configuration says which model"
    assert role is not None, "a resolved configuration says where it lives"
    assert prime is not None, "no other algorithm has one"
    path, offload, training = critic.path, role.offload, spec.training
    # Of all tokens, whatever the temperature of the engines.
    head = PolicyHead(LogprobSettings(chunk_tokens=training.logprob_chunk_tokens))
    load = partial(
        load_model,
        path,
        DTYPES[spec.model.dtype],
        kind=PROCESS_REWARD,
        world=world,
        overrides=config_changes(path, spec.model),
    )

    def train(model: PreTrainedModel, total_updates: int) -> TrainEngine:
        return TrainEngine(model, head, training, critic.optimizer, total_updates, world, offload)

    learner = Learner(
        role="critic",
        world=world,
        seed=spec.seed,
        load=lambda: load(lora=critic.lora, seed=spec.seed),
        train=train,
        offload=offload,
    )
    trained = ProcessRewardModel(learner, prime.beta)
    if critic.lora is not None:
        return trained, Prior(BaseEngine(learner.model, head, training, world), learner.resident)
    engine = ForwardEngine(load(), head, training, world)
    return trained, Prior(engine, resident_weights(engine.model, leaves="weights" in offload))
