"""TrainEngine: forward passes and optimizer updates of one model."""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace

import msgspec
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ppojob_api.v1alpha1.algorithm import AlgorithmSpec
from ppojob_api.v1alpha1.roles import Offloaded
from ppojob_api.v1alpha1.training import OptimizerSpec, TrainingSpec
from ppojob_trainer.engine.forward_engine import ForwardEngine, StageOutput, one_token
from ppojob_trainer.engine.head import Head, TokenOutputs
from ppojob_trainer.engine.kto_objective import REWARD_MEAN, KtoObjective, RewardMean
from ppojob_trainer.engine.loss_scale import LOSS_SCALE, LossScale
from ppojob_trainer.engine.mtp import Mtp
from ppojob_trainer.engine.objective import (
    Denominators,
    LossParts,
    SftObjective,
    SupervisedObjective,
)
from ppojob_trainer.engine.optimizer import (
    build_optimizer,
    clip_gradients,
    learning_rate,
    load_optimizer_tensors,
    optimizer_boxes,
    optimizer_tensors,
    set_rate,
    step_by_weight,
    trained_parameters,
)
from ppojob_trainer.engine.pair_objective import PairObjective
from ppojob_trainer.engine.policy_objective import DistillationObjective, PolicyObjective
from ppojob_trainer.engine.routers import Routers
from ppojob_trainer.engine.value_objective import OutcomeObjective, ValueObjective
from ppojob_trainer.engine.weight_average import WeightAverage
from ppojob_trainer.metrics.pass_statistics import PassStatistics
from ppojob_trainer.models.adapter_dropout import checkpoint_contexts
from ppojob_trainer.models.lora import has_dropout
from ppojob_trainer.models.pipeline_stages import shared_embedding
from ppojob_trainer.parallel.boxes import Box, local_part
from ppojob_trainer.parallel.collectives import sum_over_data
from ppojob_trainer.parallel.fsdp import reduce_gradients
from ppojob_trainer.parallel.offload import HostBuffers, saved_on_host
from ppojob_trainer.parallel.pipeline import schedule_1f1b
from ppojob_trainer.parallel.world import World
from ppojob_trainer.rows.experience import Experience

GivenObjective = SftObjective | PairObjective | KtoObjective
"""Objectives of demonstrations."""

Objective = (
    PolicyObjective
    | DistillationObjective
    | ValueObjective
    | OutcomeObjective
    | GivenObjective
    | SupervisedObjective
)

HeadOf = Callable[[Experience], Head]
"""Makes the head of a micro-batch, from another model's outputs."""


@dataclass(frozen=True, slots=True)
class Supervised:
    """Demonstrations of an update in addition to its rows, with a head of their own."""

    rows: Experience  # this rank's, maybe none
    objective: SupervisedObjective
    head: Head
    policy_weight: float = 1.0  # factor of the loss of the update's own rows


@dataclass(frozen=True, slots=True)
class _Term:
    """A term of the loss: rows and their objective."""

    rows: Experience
    objective: Objective
    denominators: Denominators
    head_of: HeadOf | None = None
    routers: Routers | None = None
    mtp: Mtp | None = None
    weight: float = 1.0  # factor of the objective's loss

    def loss(self, outputs: TokenOutputs, rows: Experience) -> LossParts:
        part = self.objective(outputs, rows, self.denominators)
        if self.weight != 1.0:
            part.loss = self.weight * part.loss
            if (name := f"{self.objective.area}/loss") in part.terms:
                part.terms[name] *= self.weight
        return part


UPDATES = "updates"
"""Name of the number of updates among the tensors of the state."""


class TrainEngine(ForwardEngine):
    """Forward passes and optimizer steps of one model under one head.

    The same rows, state and number of threads give the same bits. Dropout is on in updates only.
    That of adapters is a function of rows and the number of the update, other dropout uses torch's
    global generator, whose state belongs in the checkpoint. A mini-batch may be
    distributed over the ranks in any way: losses are divided by its counts, and gradients are
    reduced once, after the last micro-batch.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        head: Head,
        training: TrainingSpec,
        optimizer: OptimizerSpec,
        total_steps: int,
        world: World | None = None,
        offload: Collection[Offloaded] = (),
        routers: AlgorithmSpec | None = None,
        average_decay: float | None = None,
        mtp: Mtp | None = None,
        *,
        tracks_rewards: bool = False,
    ) -> None:
        """Take over a model as `ForwardEngine` does, to train it in place.

        `total_steps` are the optimizer steps of the whole job. The owner of the model offloads
        weights, the engine the rest of `offload`. `routers` says which losses and bias updates MoE
        routers have. With `average_decay` there is an EMA of the weights, to be begun or loaded.
        `mtp` trains the MTP layer. With `tracks_rewards` the mean reward of labelled answers is
        part of the state.
        """
        super().__init__(model, head, training, world)
        if "activations" in offload:
            self._saving = saved_on_host
        self.moments = HostBuffers()
        self._moments_leave = "optimizer" in offload
        self.updates = 0
        self._has_dropout = has_dropout(model)
        self._routers: Routers | None = None
        if routers and (routers.has_router_losses or routers.router_bias_rate > 0.0):
            self._routers = Routers(routers, model, self._world, self._sequence)
        self._mtp = mtp
        self._spec = optimizer
        self._total_steps = total_steps
        self._scale = LossScale() if training.autocast == "float16" else None
        self.reward_mean = RewardMean() if tracks_rewards else None
        running = {LOSS_SCALE: self._scale, REWARD_MEAN: self.reward_mean}
        self._running = {name: one for name, one in running.items() if one is not None}
        if training.activation_checkpointing:
            options = {"use_reentrant": False, "context_fn": checkpoint_contexts}
            model.gradient_checkpointing_enable(options)
        self._optimizer = build_optimizer(model, optimizer)
        trained, rounds = trained_parameters(model), optimizer.moments_dtype == "bfloat16"
        self._moment_names: dict[Tensor, str] = (
            {weight: name for name, weight in trained.items()} if rounds else {}
        )
        host = self.moments if self._moments_leave else None
        self.average = WeightAverage(trained, average_decay, host) if average_decay else None

    def update(
        self,
        experience: Experience,
        objective: Objective,
        heads: Sequence[HeadOf] = (),
        supervised: Supervised | None = None,
    ) -> PassStatistics:
        """Do one optimizer step on a mini-batch; a collective of all ranks.

        The rows are this rank's, maybe none. Rows whose gradient is provably zero are not computed,
        and count in the denominators. `heads` make the head of each micro-batch: one for the rows
        of each reference model; () for the engine's own head. All ranks call each equally often.
        `supervised` adds the loss of demonstrations, with its own denominators. A gradient that is
        not finite changes no weights and is reported as `<area>/skipped`; the schedule advances.
        Returns the statistics of all ranks: losses divided by the denominators, and sums over the
        computed tokens.
        """
        self.model.train()
        denominators = self._denominators(experience)
        routers = self._routers
        if routers is not None:
            routers.begin(denominators.sequences, self._scale.value if self._scale else 1.0)
        weight = 1.0 if supervised is None else supervised.policy_weight
        own = _Term(experience, objective, denominators, None, routers, self._mtp, weight)
        self._clear_gradients()
        passes = self._passes_of_update(own, heads)
        names = [*objective.term_names]
        if self._mtp is not None:
            names.append(f"{objective.area}/mtp_loss")
        if supervised is not None:
            passes += self._supervised_passes(supervised)
            names += supervised.objective.term_names
        parts: list[LossParts] = []
        in_flight: deque[tuple[StageOutput, LossParts | None]] = deque()
        for turn, number in schedule_1f1b(len(passes), self._stage.ranks.stages_after):
            if turn == "forward":
                in_flight.append(self._begin(*passes[number]))
                continue
            reduce_gradients(self.model, is_last=number == len(passes) - 1)
            passed, part = in_flight.popleft()
            self._backward(passed, part)
            if part is not None:
                parts.append(part)
        measured = self._measured(parts, names, objective.token_names)
        if routers is not None:
            measured = routers.with_measured(measured, objective.area)
        return self._step(objective.area, measured)

    def state_tensors(self) -> dict[str, Tensor]:
        """Return the state besides weights and random state, by name."""
        return {
            UPDATES: torch.tensor(self.updates),
            **{
                name: torch.tensor(astuple(one), dtype=torch.float64)
                for name, one in self._running.items()
            },
            **optimizer_tensors(self.model, self._optimizer),
        }

    def state_boxes(self) -> dict[str, Box]:
        """Return this rank's shard of each of them."""
        return {
            UPDATES: Box.whole(()),
            **{name: Box.whole((2,)) for name in self._running},
            **optimizer_boxes(self.model, self._spec),
        }

    def load_state(self, parts: Mapping[str, Tensor]) -> None:
        """Load copies of this rank's shards of `state_tensors`."""
        state = dict(parts)
        self.updates = int(state.pop(UPDATES))
        for name, one in self._running.items():
            for number, value in zip(fields(one), state.pop(name).tolist(), strict=True):
                setattr(one, number.name, value)
        host = self.moments if self._moments_leave else None
        load_optimizer_tensors(self.model, self._spec, self._optimizer, state, host)

    def _denominators(self, rows: Experience) -> Denominators:
        """Sum those of all ranks' rows; a collective of all ranks."""
        mine = Denominators.of(rows)
        counts = (mine.tokens, mine.sequences, mine.positives)
        return Denominators(*sum_over_data(self._world, counts))

    def _passes_of_update(self, term: _Term, heads: Sequence[HeadOf]) -> list[tuple[_Term, Tensor]]:
        """Return the micro-batches of the mini-batch, with their heads."""
        experience, objective = term.rows, term.objective
        rows = torch.arange(experience.num_rows)
        # Of a whole group only two rows may have a loss; all of them may exceed the budget.
        whole_groups = isinstance(objective, PairObjective) or (
            isinstance(objective, PolicyObjective) and objective.whole_groups
        )
        has_more = term.routers is not None or term.mtp is not None
        if not has_more and (self._training.skip_zero_gradient_groups or whole_groups):
            rows = objective.rows_with_gradient(experience)
        return [
            (replace(term, head_of=head_of), chosen)
            for teacher, head_of in enumerate(heads or (None,))
            for chosen in self._passes(
                experience,
                rows[experience.read_by(teacher)[rows]] if heads else rows,
                whole_groups=whole_groups,
                with_reference=bool(heads),
            )
        ]

    def _supervised_passes(self, supervised: Supervised) -> list[tuple[_Term, Tensor]]:
        """Return the micro-batches of demonstrations, which run after the others."""
        rows, objective = supervised.rows, supervised.objective
        term = _Term(rows, objective, self._denominators(rows), lambda _: supervised.head)
        passes = self._passes(rows, objective.rows_with_gradient(rows))
        return [(term, chosen) for chosen in passes]

    def _begin(self, term: _Term, chosen: Tensor) -> tuple[StageOutput, LossParts | None]:
        """Run the forward pass of a micro-batch, and the loss at the last stage.

        Without rows it runs one token with zero gradients, since passes are collectives.
        """
        rows = term.rows.select(chosen) if len(chosen) else None
        batch = one_token() if rows is None else rows
        objective, head_of = term.objective, term.head_of
        passed = self._forward(
            batch,
            head_of and head_of(batch),
            routers=None if rows is None else term.routers,
            with_log_z=isinstance(objective, PolicyObjective) and objective.needs.learns_log_z,
            mtp=term.mtp,
            dropout=self.updates if self._has_dropout else None,
        )
        if not self._stage.ranks.is_last:
            return passed, None
        if rows is None:
            trained = [output for output in passed.outputs if output.requires_grad]
            return passed, LossParts(torch.cat(trained).sum() * 0.0)
        if term.mtp is None:
            return passed, term.loss(passed.outputs, rows)
        *outputs, further = passed.outputs
        part = term.loss(tuple(outputs), rows)
        return passed, term.mtp.add_to(part, further, term.denominators, objective.area)

    def _backward(self, passed: StageOutput, part: LossParts | None) -> None:
        """Run the backward pass, from the loss or from the gradient that the next stage sends."""
        ranks = self._stage.ranks
        if part is not None:
            torch.autograd.backward(part.loss * self._scale.value if self._scale else part.loss)
        else:
            assert passed.sent is not None, "a stage has a loss or sends states"
            torch.autograd.backward(passed.sent, ranks.receive_back(passed.sent))
        if passed.received is not None:
            assert passed.received.grad is not None, "the loss depends on it"
            ranks.send_back(passed.received.grad)

    def _measured(
        self, parts: list[LossParts], term_names: Sequence[str], token_names: Sequence[str]
    ) -> PassStatistics:
        return self.over_ranks(
            PassStatistics(
                values={
                    name: sum(part.terms.get(name, 0.0) for part in parts) for name in term_names
                },
                token_sums={
                    name: sum(part.token_sums.get(name, 0.0) for part in parts)
                    for name in token_names
                },
                tokens=sum(part.tokens for part in parts),
                counts={
                    name: sum(part.counts.get(name, part.tokens) for part in parts)
                    for name in token_names
                },
            )
        )

    def _clear_gradients(self) -> None:
        """Zero gradients in place, which is faster than allocating them."""
        trained = [one for one in self.model.parameters() if one.requires_grad]
        for parameter in trained:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        torch._foreach_zero_([local_part(one.grad) for one in trained if one.grad is not None])

    def _step(self, area: str, measured: PassStatistics) -> PassStatistics:
        """Clip, check, and step; all ranks or none."""
        rate = learning_rate(self._spec, self.updates, self._total_steps)
        ranks, shared = self._stage.ranks, shared_embedding(self.model)
        if shared is not None and shared.grad is not None:
            ranks.all_reduce_ends(local_part(shared.grad))
        state = {f"{area}/lr": rate}
        if self._scale is not None:
            grads = [local_part(p.grad) for p in self.model.parameters() if p.grad is not None]
            torch._foreach_mul_(grads, 1.0 / self._scale.value)  # a power of two
            state[f"{area}/loss_scale"] = self._scale.value
        norm = clip_gradients(
            self.model.parameters(),
            self._spec.gradient_clip,
            self._world,
            elsewhere=None if ranks.is_first else shared,
        )
        is_finite = norm < float("inf")
        if is_finite:
            set_rate(self._optimizer, rate)
            if self._moments_leave or self._moment_names:
                host = self.moments if self._moments_leave else None
                step_by_weight(self._optimizer, host, self._moment_names, self.updates)
            else:
                self._optimizer.step()
            if self._routers is not None:
                self._routers.update_biases()
            if self.average is not None:
                self.average.update()
            if self.reward_mean is not None:
                self.reward_mean.update(measured)
        if self._scale is not None:
            self._scale.update(is_finite=is_finite)
        self.updates += 1
        skipped = 0.0 if is_finite else 1.0
        return msgspec.structs.replace(
            measured,
            values={**measured.values, f"{area}/grad_norm": norm, f"{area}/skipped": skipped},
            state=state,
        )
