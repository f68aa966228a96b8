"""TrainEngine: forward passes and updates of one model in training."""

from collections.abc import Callable, Mapping

import msgspec
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ppojob_api.v1alpha1.training import OptimizerSpec, TrainingSpec
from ppojob_trainer.engine.forward_engine import ForwardEngine, one_token
from ppojob_trainer.engine.head import Head
from ppojob_trainer.engine.objective import Denominators, LossParts
from ppojob_trainer.engine.optimizer import (
    build_optimizer,
    clip_gradients,
    learning_rate,
    load_optimizer_tensors,
    optimizer_tensors,
)
from ppojob_trainer.engine.pair_objective import PairObjective
from ppojob_trainer.engine.policy_objective import PolicyObjective
from ppojob_trainer.engine.sft_objective import SftObjective
from ppojob_trainer.engine.value_objective import ValueObjective
from ppojob_trainer.metrics.pass_statistics import PassStatistics
from ppojob_trainer.parallel.collectives import sum_over_data
from ppojob_trainer.parallel.fsdp import reduce_gradients
from ppojob_trainer.parallel.world import World
from ppojob_trainer.rows.experience import Experience

Objective = PolicyObjective | ValueObjective | SftObjective | PairObjective

HeadOf = Callable[[Experience], Head]
"""Makes the head of a micro-batch, from what another model computes of it."""

UPDATES = "updates"
"""Name of the engine's own tensor among the optimizer's: how many updates were done."""


class TrainEngine(ForwardEngine):
    """Forward passes and optimizer steps of one model under one head.

    The same rows, state and number of threads give the same bits. Dropout of the model's
    configuration is at work in updates, off in `predict`, and draws from torch's global generator,
    whose state belongs into a checkpoint.
    A mini-batch may lie on the ranks in any way: losses are divided by counts of all of it,
    gradients are added up once, behind the last micro-batch.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        head: Head,
        training: TrainingSpec,
        optimizer: OptimizerSpec,
        total_steps: int,
        world: World | None = None,
    ) -> None:
        """Take over a model as `ForwardEngine` does, to be trained in place.

        The schedule is of `total_steps`, the optimizer steps of the whole job.
        """
        super().__init__(model, head, training, world)
        self.updates = 0
        self._spec = optimizer
        self._total_steps = total_steps
        if training.activation_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        self._optimizer = build_optimizer(model, optimizer)

    def update(
        self,
        experience: Experience,
        objective: Objective,
        head_of: HeadOf | None = None,
    ) -> PassStatistics:
        """One optimizer step on a mini-batch; all ranks do so together.

        Rows whose gradient is provably zero are not computed, and still count in the denominators.
        A gradient that is not finite leaves weights and moments untouched and is reported as
        `<area>/skipped`; the schedule goes on.

        The rows are this rank's of the mini-batch, maybe none, with the columns that the objective
        reads. `head_of` makes the head of each micro-batch, None for the engine's own; all ranks
        call it equally often.

        Returns:
            What all ranks have measured. Losses are divided by the denominators; sums over tokens
            are over those that were computed.
        """
        self.model.train()
        mine = Denominators.of(experience)
        counts = sum_over_data(self._world, (mine.tokens, mine.sequences))
        denominators = Denominators(*counts)
        rows = torch.arange(experience.num_rows)
        if self._training.skip_zero_gradient_groups:
            rows = objective.rows_with_gradient(experience)
        self._clear_gradients()
        whole_groups = isinstance(objective, PairObjective)
        passes = self._passes(experience, rows, whole_groups=whole_groups)
        parts = []
        for i, chosen in enumerate(passes):
            reduce_gradients(self.model, is_last=i == len(passes) - 1)
            if len(chosen):
                batch = experience.select(chosen)
                parts.append(self._backward(batch, objective, denominators, head_of))
            else:
                self._backward_without_rows(head_of)
        measured = self._measured(parts, objective)
        return self._step(objective.area, measured)

    def state_tensors(self) -> dict[str, Tensor]:
        """All that updates depend on besides weights and random state, by name; cut as weights."""
        return {
            UPDATES: torch.tensor(self.updates),
            **optimizer_tensors(self.model, self._optimizer),
        }

    def load_state(self, parts: Mapping[str, Tensor]) -> None:
        """Take up a copy of this rank's parts of `state_tensors`."""
        state = dict(parts)
        self.updates = int(state.pop(UPDATES))
        load_optimizer_tensors(self.model, self._optimizer, state)

    def _backward(
        self,
        rows: Experience,
        objective: Objective,
        denominators: Denominators,
        head_of: HeadOf | None,
    ) -> LossParts:
        outputs = self._forward(rows, head_of and head_of(rows))
        parts = objective(outputs, rows, denominators)
        torch.autograd.backward(parts.loss)
        return parts

    def _backward_without_rows(self, head_of: HeadOf | None) -> None:
        """Forward and backward with gradients of zero: ranks that have rows need all ranks."""
        batch = one_token()
        outputs = self._forward(batch, head_of and head_of(batch))
        outputs = tuple(output for output in outputs if output.requires_grad)
        torch.autograd.backward(torch.cat(outputs).sum() * 0.0)

    def _measured(self, parts: list[LossParts], objective: Objective) -> PassStatistics:
        """What the micro-batches of all ranks say of the mini-batch."""
        return self.over_ranks(
            PassStatistics(
                values={
                    name: sum(part.terms[name] for part in parts) for name in objective.term_names
                },
                token_sums={
                    name: sum(part.token_sums[name] for part in parts)
                    for name in objective.token_names
                },
                tokens=sum(part.tokens for part in parts),
            )
        )

    def _clear_gradients(self) -> None:
        """Zero gradients in place: fresh memory of that size costs more than the pass over it."""
        for parameter in self.model.parameters():
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self._optimizer.zero_grad(set_to_none=False)

    def _step(self, area: str, measured: PassStatistics) -> PassStatistics:
        """Clip, check, and step; every rank on its part of the weights, all or none."""
        rate = learning_rate(self._spec, self.updates, self._total_steps)
        norm = clip_gradients(self.model.parameters(), self._spec.gradient_clip, self._world)
        is_finite = norm < float("inf")
        if is_finite:
            for group in self._optimizer.param_groups:
                group["lr"] = rate
            self._optimizer.step()
        self.updates += 1
        skipped = 0.0 if is_finite else 1.0
        return msgspec.structs.replace(
            measured,
            values={**measured.values, f"{area}/grad_norm": norm, f"{area}/skipped": skipped},
            state={f"{area}/lr": rate},
        )
