"""TrainEngine: forward passes and optimizer updates of one model."""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ppojob_api.v1alpha1.roles import Offloaded
from ppojob_api.v1alpha1.training import OptimizerSpec, TrainingSpec
from ppojob_trainer.engine.forward_engine import ForwardEngine, Passed, one_token
from ppojob_trainer.engine.head import Head, TokenOutputs
from ppojob_trainer.engine.kto_objective import REWARD_MEAN, KtoObjective, RewardMean
from ppojob_trainer.engine.loss_scale import LOSS_SCALE, LossScale
from ppojob_trainer.engine.mtp import Mtp, mtp_loss_name
from ppojob_trainer.engine.objective import (
    Denominators,
    LossParts,
    SftObjective,
    SupervisedObjective,
)
from ppojob_trainer.engine.optimizer import (
    build_optimizer,
    clip_gradients,
    divide_gradients,
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
from ppojob_trainer.engine.routers import RouterCoefficients, Routers
from ppojob_trainer.engine.value_objective import OutcomeObjective, ValueObjective
from ppojob_trainer.engine.weight_average import WeightAverage
from ppojob_trainer.metrics.pass_statistics import PassStatistics
from ppojob_trainer.models.pipeline_stages import shared_embedding
from ppojob_trainer.parallel.boxes import Box, local_part
from ppojob_trainer.parallel.collectives import sum_over_data
from ppojob_trainer.parallel.fsdp import reduce_gradients
from ppojob_trainer.parallel.offload import HostMemory, saved_on_host
from ppojob_trainer.parallel.pipeline import turns
from ppojob_trainer.parallel.world import World
from ppojob_trainer.rows.experience import Experience

GivenObjective = SftObjective | PairObjective | KtoObjective
"""Metrics of supervised rows."""

Objective = (
    PolicyObjective
    | DistillationObjective
    | ValueObjective
    | OutcomeObjective
    | GivenObjective
    | SupervisedObjective
)

HeadOf = Callable[[Experience], Head]
"""Makes the head of a micro-batch from another model's outputs."""


@dataclass(frozen=True, slots=True)
class Supervised:
    """Demonstrations that an update trains on beside its rows, with a head of their own."""

    rows: Experience  # this rank's, maybe none
    objective: SupervisedObjective
    head: Head
    policy_weight: float = 1.0  # factor of the loss of the update's own rows


@dataclass(frozen=True, slots=True)
class _Term:
    """A term of the loss: rows, objective, and how they are computed."""

    rows: Experience
    objective: Objective
    denominators: Denominators
    head_of: HeadOf | None = None
    routers: Routers | None = None
    mtp: Mtp | None = None
    weight: float = 1.0  # factor of the objective's loss

    def loss(self, outputs: TokenOutputs, rows: Experience) -> LossParts:
        """Return the weighted loss of a micro-batch."""
        part = self.objective(outputs, rows, self.denominators)
        if self.weight != 1.0:
            part.loss = self.weight * part.loss
            if (name := f"{self.objective.area}/loss") in part.terms:
                part.terms[name] *= self.weight
        return part


UPDATES = "updates"
"""Name of the engine's own tensor among the optimizer's: the number of updates done."""


class TrainEngine(ForwardEngine):
    """Forward passes and optimizer steps of one model under one head.

    The same rows, state and number of threads give the same bits. Dropout by the model's
    configuration is on in updates, off in `predict`, and draws from torch's global generator, whose
    state belongs in the checkpoint. A mini-batch may be distributed over the ranks in any way:
    losses are divided by counts of all of it, and gradients are reduced once, after the last
    micro-batch.
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
        routers: RouterCoefficients | None = None,
        average_decay: float | None = None,
        mtp: Mtp | None = None,
        *,
        tracks_rewards: bool = False,
    ) -> None:
        """Take over a model as `ForwardEngine` does, to train it in place.

        `total_steps` are the optimizer steps of the whole job. Of `offload` the engine handles
        optimizer and activations; the owner of the model handles weights. `routers` are the
        coefficients of the MoE router losses added to the objective's, and the rate of the
        selection bias; None for neither. With `average_decay` there is an EMA of the weights, to be
        begun or loaded. `mtp` says how the MTP layer is trained; None where the model has none.
        With `tracks_rewards` the mean reward of labelled answers is part of the state.
        """
        super().__init__(model, head, training, world)
        if "activations" in offload:
            self._saving = saved_on_host
        self.moments = HostMemory()
        self._moments_leave = "optimizer" in offload
        self.updates = 0
        self._routers = routers
        self._mtp = mtp
        self._spec = optimizer
        self._total_steps = total_steps
        self._scale = LossScale() if training.autocast == "float16" else None
        self.reward_mean = RewardMean() if tracks_rewards else None
        if training.activation_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
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

        Rows whose gradient is provably zero are not computed, and still count in the denominators.
        A gradient that is not finite leaves weights and moments unchanged and is reported as
        `<area>/skipped`; the schedule goes on.

        The rows are this rank's of the mini-batch, maybe none, with the columns that the objective
        reads. `heads` make the head of each micro-batch: one for the rows of each reference model,
        model after model; () for the engine's own head. All ranks call each equally often. The
        gradient of `supervised` is added, with the denominators of its own rows. Losses of routers
        and of `mtp` keep their coefficients beside it.

        Returns:
            The statistics of all ranks. Losses are divided by the denominators; sums over tokens
            are over those that were computed.
        """
        self.model.train()
        denominators = self._denominators(experience)
        routers = self._routers_of_update(denominators)
        weight = 1.0 if supervised is None else supervised.policy_weight
        own = _Term(experience, objective, denominators, None, routers, self._mtp, weight)
        self._clear_gradients()
        passes = self._passes_of_update(own, heads)
        names = [*objective.term_names]
        if self._mtp is not None:
            names.append(mtp_loss_name(objective.area))
        if supervised is not None:
            passes += self._passes_beside(supervised)
            names += supervised.objective.term_names
        parts: list[LossParts] = []
        under_way: deque[tuple[Passed, LossParts | None]] = deque()
        for turn, number in turns(len(passes), self._stage.ranks.behind):
            if turn == "forward":
                under_way.append(self._begin(*passes[number]))
                continue
            reduce_gradients(self.model, is_last=number == len(passes) - 1)
            passed, part = under_way.popleft()
            self._backward(passed, part)
            if part is not None:
                parts.append(part)
        measured = self._measured(parts, names, objective.token_names)
        if routers is not None:
            measured = routers.with_measured(measured, objective.area)
        return self._step(objective.area, measured, routers)

    def state_tensors(self) -> dict[str, Tensor]:
        """Return the state of updates besides weights and random state, by name; sharded alike."""
        return {
            UPDATES: torch.tensor(self.updates),
            **({LOSS_SCALE: self._scale.state()} if self._scale else {}),
            **({REWARD_MEAN: self.reward_mean.state()} if self.reward_mean else {}),
            **optimizer_tensors(self.model, self._optimizer),
        }

    def state_boxes(self) -> dict[str, Box]:
        """Return this rank's shard of each of them, as it is after the first update."""
        boxes = {UPDATES: Box.whole(())}
        if self._scale:
            boxes[LOSS_SCALE] = Box.whole((2,))
        if self.reward_mean:
            boxes[REWARD_MEAN] = Box.whole((2,))
        return {**boxes, **optimizer_boxes(self.model, self._spec)}

    def load_state(self, parts: Mapping[str, Tensor]) -> None:
        """Load copies of this rank's shards of `state_tensors`."""
        state = dict(parts)
        self.updates = int(state.pop(UPDATES))
        if self._scale is not None:
            self._scale.load(state.pop(LOSS_SCALE))
        if self.reward_mean is not None:
            self.reward_mean.load(state.pop(REWARD_MEAN))
        host = self.moments if self._moments_leave else None
        load_optimizer_tensors(self.model, self._spec, self._optimizer, state, host)

    def _denominators(self, rows: Experience) -> Denominators:
        """Return those of a mini-batch, from this rank's rows; a collective of all ranks."""
        mine = Denominators.of(rows)
        counts = (mine.tokens, mine.sequences, mine.positives)
        return Denominators(*sum_over_data(self._world, counts))

    def _passes_of_update(self, term: _Term, heads: Sequence[HeadOf]) -> list[tuple[_Term, Tensor]]:
        """Yield the micro-batches of the mini-batch; each of `heads` gets those of its rows."""
        experience, objective = term.rows, term.objective
        rows = torch.arange(experience.num_rows)
        # Of a group's rows that are kept together two may have a loss: the others would need more
        # memory than the budget.
        whole_groups = _keeps_groups_whole(objective)
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

    def _passes_beside(self, supervised: Supervised) -> list[tuple[_Term, Tensor]]:
        """Run the micro-batches of demonstrations after the others, with their own loss alone."""
        rows, objective = supervised.rows, supervised.objective
        term = _Term(rows, objective, self._denominators(rows), lambda _: supervised.head)
        passes = self._passes(rows, objective.rows_with_gradient(rows))
        return [(term, chosen) for chosen in passes]

    def _begin(self, term: _Term, chosen: Tensor) -> tuple[Passed, LossParts | None]:
        """Run the forward pass of a micro-batch, and the loss at the last stage.

        Without rows, one token with zero gradients: ranks that have rows need all ranks in
        collectives.
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
        return passed, term.mtp.joined(part, further, term.denominators, objective.area)

    def _backward(self, passed: Passed, part: LossParts | None) -> None:
        """Run the backward pass, from the loss or from the gradient that the next stage sends."""
        ranks = self._stage.ranks
        if part is not None:
            torch.autograd.backward(part.loss * self._scale.value if self._scale else part.loss)
        else:
            assert passed.sent is not None, "a stage has a loss or hands states on"
            torch.autograd.backward(passed.sent, ranks.receive_back(passed.sent))
        if passed.received is not None:
            assert passed.received.grad is not None, "all that is computed here is made of it"
            ranks.send_back(passed.received.grad)

    def _measured(
        self, parts: list[LossParts], term_names: Sequence[str], token_names: Sequence[str]
    ) -> PassStatistics:
        """Combine the statistics of the micro-batches of all ranks."""
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

    def _routers_of_update(self, denominators: Denominators) -> Routers | None:
        """Return the routers of an update, if they have losses or a bias to move."""
        if self._routers is None:
            return None
        scale, rows = self._scale.value if self._scale else 1.0, denominators.sequences
        return Routers(self._routers, self.model, self._world, self._sequence, rows, scale)

    def _clear_gradients(self) -> None:
        """Zero gradients in place: allocating such memory costs more than the pass over it."""
        trained = [one for one in self.model.parameters() if one.requires_grad]
        for parameter in trained:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        torch._foreach_zero_([local_part(one.grad) for one in trained if one.grad is not None])

    def _step(self, area: str, measured: PassStatistics, routers: Routers | None) -> PassStatistics:
        """Clip, check, and step; every rank on its shard of the weights, all or none."""
        rate = learning_rate(self._spec, self.updates, self._total_steps)
        ranks, shared = self._stage.ranks, shared_embedding(self.model)
        if shared is not None and shared.grad is not None:
            ranks.add_ends(local_part(shared.grad))
        state = {f"{area}/lr": rate}
        if self._scale is not None:
            divide_gradients(self.model.parameters(), self._scale.value)
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
            if routers is not None:
                routers.update_biases()
            if self.average is not None:
                self.average.follow()
            if self.reward_mean is not None:
                self.reward_mean.update(measured)
        if self._scale is not None:
            self._scale.after(is_finite=is_finite)
        self.updates += 1
        skipped = 0.0 if is_finite else 1.0
        return msgspec.structs.replace(
            measured,
            values={**measured.values, f"{area}/grad_norm": norm, f"{area}/skipped": skipped},
            state=state,
        )


def _keeps_groups_whole(objective: Objective) -> bool:
    """Whether the loss is of a group's rows together."""
    if isinstance(objective, PolicyObjective):
        return objective.whole_groups
    return isinstance(objective, PairObjective)
