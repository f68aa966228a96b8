"""The models in training, policy, critic and process reward model, and their stages of a step."""

from functools import partial
from typing import Final

import torch
from transformers import PreTrainedModel

from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_api.v1alpha1.preferences import DpoSpec, KtoSpec, RewardModelTrainingSpec
from ppojob_trainer.engine.forward_engine import ForwardEngine
from ppojob_trainer.engine.full_kl import REVERSE_KL, Divergence, HeadWithKl
from ppojob_trainer.engine.fused_logprobs import LogprobSettings
from ppojob_trainer.engine.head import PolicyHead, TokenOutputs, ValueHead
from ppojob_trainer.engine.kto_objective import KtoObjective
from ppojob_trainer.engine.mtp import Mtp
from ppojob_trainer.engine.objective import (
    Aggregation,
    SftObjective,
    SupervisedObjective,
    token_sums,
)
from ppojob_trainer.engine.pair_objective import (
    BradleyTerryLoss,
    DpoLoss,
    DrawnPairObjective,
    PairObjective,
)
from ppojob_trainer.engine.policy_objective import (
    DistillationObjective,
    PolicyObjective,
    sampling_diagnostics,
)
from ppojob_trainer.engine.train_engine import GivenObjective, Supervised, TrainEngine
from ppojob_trainer.engine.value_objective import OutcomeObjective, ValueObjective
from ppojob_trainer.metrics.pass_statistics import PassStatistics
from ppojob_trainer.models.experts import freeze_routers
from ppojob_trainer.models.kinds import CRITIC, POLICY, PROCESS_REWARD, SCORER
from ppojob_trainer.parallel.offload import OffloadableWeights
from ppojob_trainer.parallel.world import World
from ppojob_trainer.rows.experience import ROUTER_COLUMNS, Experience
from ppojob_trainer.rpc.messages.training import Update
from ppojob_trainer.workers.answer_probability import answer_probabilities
from ppojob_trainer.workers.batch_rows import BatchRows
from ppojob_trainer.workers.learner import (
    Learner,
    TrainedModel,
    critic_learner,
    load_for,
    resident_weights,
)
from ppojob_trainer.workers.reference import BaseEngine, Reference

CRITIC_REFERENCE: Final = "critic_reference"
"""Name of the reference in requests."""


def supervised_objective(spec: PPOJobSpec) -> GivenObjective | None:
    """Return the loss of a job of demonstrations; None for another job."""
    algorithm = spec.algorithm
    match algorithm.type:
        case "sft":
            limit = spec.data.max_response_tokens
            return SftObjective(Aggregation.of(algorithm, limit))
        case "dpo":
            return PairObjective(DpoLoss(algorithm.dpo or DpoSpec()))
        case "kto":
            return KtoObjective(algorithm.kto or KtoSpec())
        case "reward_model":
            settings = algorithm.reward_model or RewardModelTrainingSpec()
            return PairObjective(BradleyTerryLoss(settings))
    return None


class Policy(TrainedModel):
    """The policy in training."""

    def __init__(self, spec: PPOJobSpec, learner: Learner) -> None:
        super().__init__(learner)
        # For updates over the whole vocabulary, and for held-out answers.
        self.reference: Reference | None = None
        self.demonstrations: BatchRows | None = None
        # Rows of `replace_answers`, if the probability of answers is a reward.
        self.answer_rows: Experience | None = None
        self._spec = spec
        self._supervised_objective = supervised_objective(spec)

    @property
    def models_of_update(self) -> tuple[OffloadableWeights, ...]:
        return (
            self.models_of_loss if self._supervised_objective is None else super().models_of_update
        )

    @property
    def models_of_loss(self) -> tuple[OffloadableWeights, ...]:
        """Return the models that the loss of held-out rows uses."""
        others = () if self.reference is None else (self.reference.resident,)
        return (self.learner.resident, *others)

    def forward(self, rows: BatchRows) -> PassStatistics:
        """Fill in `old_logprobs`; return statistics of the policy before the step."""
        engine, algorithm = self.learner.engine, self._spec.algorithm
        squares, certainty = algorithm.estimator.has_sum_pi_squared, algorithm.reads_certainties
        if squares or certainty:
            head = PolicyHead.of(self._spec, "value", squares=squares, certainty=certainty)
            further = {"sum_pi_squared": squares, "certainties": certainty}
            columns = ["entropies", *(name for name, is_asked in further.items() if is_asked)]
        else:
            head, columns = None, ["entropies"] if algorithm.reads_entropies else []
        records = algorithm.router_replay == "recompute"
        predict = partial(engine.predict, head=head, records=records)
        recorded, read = (ROUTER_COLUMNS, ()) if records else ((), ROUTER_COLUMNS)
        read = (*read, "given")
        staged, (logprobs, entropy, *_) = rows.fill(
            "old_logprobs", predict, *columns, read=read, set_by_compute=recorded
        )
        if (settings := algorithm.answer_reward) is not None:
            assert self.answer_rows is not None, "set with the rows"
            predict = partial(engine.predict, head=PolicyHead.of(self._spec, "none"))
            rewards = answer_probabilities(settings, rows, self.answer_rows, predict)
            rows.mine.answer_probabilities = rewards.repeat_interleave(rows.mine.lengths)
        generated = staged.drawn
        sums = token_sums(sampling_diagnostics(logprobs, entropy, staged), generated)
        return engine.over_ranks(PassStatistics(token_sums=sums, tokens=int(generated.sum())))

    def update(self, rows: BatchRows, request: Update) -> PassStatistics:
        if self._supervised_objective is not None:
            staged = rows.mini_batch(request.prompts, ("ref_logprobs", "turn_rewards"))
            return self.learner.engine.update(
                *self._with_objective(staged, self._supervised_objective)
            )
        objective = self._objective(request)
        read = ("old_logprobs", "ref_logprobs", "loss_weights", "advantages", "positives")
        columns = (*read, "given", *ROUTER_COLUMNS)
        staged, engine = rows.mini_batch(request.prompts, columns), self.learner.engine
        supervised = self._supervised_part(request)
        if self.reference is None:
            return engine.update(staged, objective, supervised=supervised)
        reference = self.reference
        numbers = range(reference.num_models)
        heads = [partial(self._head_with_kl, reference, number) for number in numbers]
        measured = engine.update(staged, objective, heads, supervised)
        reference.release()
        return measured

    def _supervised_part(self, request: Update) -> Supervised | None:
        """Return an update's demonstrations, at temperature 1, as in SFT."""
        settings, weight = self._spec.algorithm.supervised, request.supervised_coefficient
        if settings is None or not weight:
            return None
        assert self.demonstrations is not None, "set before the update"
        rows = self.demonstrations.mini_batch(request.demonstrations, ())
        head = PolicyHead(LogprobSettings(1.0, self._spec.training.logprob_chunk_tokens))
        objective = SupervisedObjective(weight, settings.uncertain_tokens)
        return Supervised(rows, objective, head, 1.0 - weight if settings.interpolate else 1.0)

    def _objective(
        self, request: Update
    ) -> PolicyObjective | DistillationObjective | DrawnPairObjective:
        algorithm, limit = self._spec.algorithm, self._spec.data.max_response_tokens
        if algorithm.pairs is not None:
            return DrawnPairObjective(DpoLoss(algorithm.pairs))
        if algorithm.divergence is not None:
            return DistillationObjective.of(algorithm, max_response_tokens=limit)
        return PolicyObjective.of(
            algorithm,
            request.kl_coefficient,
            entropy_coefficient=request.entropy_coefficient,
            max_response_tokens=limit,
        )

    def loss(self, rows: BatchRows) -> PassStatistics:
        """Return the loss of held-out demonstrations."""
        assert self._supervised_objective is not None, "of a job of demonstrations"
        engine = self.learner.engine
        staged = rows.mini_batch(range(rows.index.num_groups), ("turn_rewards",))
        if self.reference is not None:
            (staged.ref_logprobs,) = self.reference.predict(staged)
        own, objective = self._with_objective(staged, self._supervised_objective)
        return engine.over_ranks(objective.measured(engine.predict(own), own))

    def _with_objective(
        self, rows: Experience, given: GivenObjective
    ) -> tuple[Experience, GivenObjective]:
        """Return the rows that have a loss, and the loss for this mini-batch."""
        engine = self.learner.engine
        if isinstance(given, SftObjective):
            return rows, given
        if isinstance(given, KtoObjective) and engine.reward_mean is not None:
            return rows, given.compared_with(engine.reward_mean)
        return given.of_batch(rows, engine)

    def _head_with_kl(self, reference: Reference, number: int, rows: Experience) -> HeadWithKl:
        own, divergence = self._spec.algorithm.divergence, REVERSE_KL
        if own is not None:
            divergence = Divergence(own.divergence, own.beta)
        head = PolicyHead.of_updates(self._spec)
        return HeadWithKl(head, reference.last_states(number, rows), divergence)


def open_policy(spec: PPOJobSpec, world: World) -> Policy:
    """Load the policy."""
    model, offload = spec.model, spec.roles.actor_rollout.offload
    is_scorer = spec.algorithm.type == "reward_model"

    def load() -> PreTrainedModel:
        loaded = load_for(
            spec,
            model.path,
            world,
            SCORER if is_scorer else POLICY,
            model.lora,
            with_tower=not model.freeze_vision_tower,
            learns_log_z=spec.algorithm.policy_loss.loss.learns_log_z,
            with_mtp=model.mtp is not None,
        )
        if model.freeze_routers:
            freeze_routers(loaded)
        return loaded

    def train(model: PreTrainedModel, total_updates: int) -> TrainEngine:
        head = ValueHead() if is_scorer else PolicyHead.of_updates(spec)
        return TrainEngine(
            model,
            head,
            spec.training,
            spec.optimizer,
            total_updates,
            world,
            offload,
            spec.algorithm,
            spec.model.average_decay,
            Mtp.of(spec),
            tracks_rewards=spec.algorithm.tracks_rewards,
        )

    return Policy(spec, Learner("actorRollout", world, spec.seed, load, train, offload))


class Critic(TrainedModel):
    """The value model in training."""

    def __init__(self, learner: Learner, objective: ValueObjective) -> None:
        super().__init__(learner)
        self._objective = objective

    def forward(self, rows: BatchRows) -> PassStatistics:
        rows.fill("values", self.learner.engine.predict)
        return PassStatistics()

    def update(self, rows: BatchRows, request: Update) -> PassStatistics:
        staged = rows.mini_batch(request.prompts, ("values", "returns"))
        return self.learner.engine.update(staged, self._objective)


def open_critic(spec: PPOJobSpec, world: World) -> Critic:
    """Load the critic."""
    assert spec.critic is not None, "the role has a critic"
    limit = spec.data.max_response_tokens
    objective = ValueObjective(spec.critic.value_clip, Aggregation.of(spec.algorithm, limit))
    return Critic(critic_learner(spec, world, CRITIC, ValueHead()), objective)


class ProcessRewardModel(TrainedModel):
    """PRIME's reward model: a language model trained on the outcomes of responses.

    The reward of a token is its log-probability ratio to a reference: the model's initial state, or
    another model that it was made from.
    """

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
) -> tuple[ProcessRewardModel, Reference]:
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
        engine: ForwardEngine = BaseEngine(learner.model, head, training, world)
        resident = learner.resident
    else:
        loaded = load_for(spec, reference, world, PROCESS_REWARD)
        engine = ForwardEngine(loaded, head, training, world)
        resident = resident_weights(loaded, role.offload)
    return trained, Reference(engine, resident, "critic_ref_logprobs")
