"""TrainEngine: one model in training, what it says of rows, and how rows change it."""

from collections.abc import Mapping

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ppojob_api.v1alpha1.training import OptimizerSpec, TrainingSpec
from ppojob_trainer.engine.forward_engine import ForwardEngine
from ppojob_trainer.engine.head import Head
from ppojob_trainer.engine.objective import Denominators, LossParts, Objective
from ppojob_trainer.engine.optimizer import (
    build_optimizer,
    clip_gradients,
    learning_rate,
    load_optimizer_tensors,
    optimizer_tensors,
)
from ppojob_trainer.rows.experience import Experience

UPDATES = "updates"
"""Name of the engine's own tensor among the optimizer's: how many updates were done."""


class TrainEngine(ForwardEngine):
    """Forward passes and optimizer steps of one model under one head.

    The same rows, state and number of threads give the same bits. Dropout of the model's
    configuration is at work in updates, off in `predict`, and draws from torch's global generator,
    whose state belongs into a commit.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        head: Head,
        training: TrainingSpec,
        optimizer: OptimizerSpec,
        total_steps: int,
    ) -> None:
        """Take over a model.

        Args:
            model: trained in place; its attention becomes the packed one.
            head: what is asked of each response token.
            training: micro-batches, autocast, recomputation.
            optimizer: AdamW and its schedule.
            total_steps: optimizer steps of the whole job, for the schedule.
        """
        super().__init__(model, head, training)
        self.updates = 0
        self._spec = optimizer
        self._total_steps = total_steps
        if training.activation_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        self._optimizer = build_optimizer(model, optimizer)

    def update(self, experience: Experience, objective: Objective) -> dict[str, float]:
        """One optimizer step on a mini-batch.

        Rows whose gradient is provably zero are not computed, and still count in the denominators.
        A gradient that is not finite leaves weights and moments untouched and is reported as
        `<area>/skipped`; the schedule goes on.

        Args:
            experience: the mini-batch's rows, with the columns that the objective reads.
            objective: what is minimized.

        Returns:
            Statistics by metric name. Losses are divided by the denominators; shares and means a
            token are over the tokens that were computed.
        """
        self.model.train()
        denominators = Denominators.of(experience)
        rows = torch.arange(experience.num_rows)
        if self._training.skip_zero_gradient_groups:
            rows = objective.rows_with_gradient(experience)
        self._clear_gradients()
        parts = [
            self._backward(experience.select(chosen), objective, denominators)
            for chosen in self._micro_batches(experience, rows)
        ]
        return {**_statistics(parts, objective), **self._step(objective.area)}

    def state_tensors(self) -> dict[str, Tensor]:
        """All that updates depend on besides weights and random state, by name."""
        return {
            UPDATES: torch.tensor(self.updates),
            **optimizer_tensors(self.model, self._optimizer),
        }

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Take up a state that `state_tensors` gave.

        Raises:
            ValueError: if it is that of another model.
        """
        state = dict(tensors)
        if UPDATES not in state:
            raise ValueError(f"optimizer state: got no {UPDATES!r}: it is not a state of ours")
        self.updates = int(state.pop(UPDATES))
        load_optimizer_tensors(self.model, self._optimizer, state)

    def _backward(
        self, rows: Experience, objective: Objective, denominators: Denominators
    ) -> LossParts:
        parts = objective(self._forward(rows), rows, denominators)
        torch.autograd.backward(parts.loss)
        return parts

    def _clear_gradients(self) -> None:
        """Zero gradients in place: fresh memory of that size costs more than the pass over it."""
        for parameter in self.model.parameters():
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self._optimizer.zero_grad(set_to_none=False)

    def _step(self, area: str) -> dict[str, float]:
        """Clip, check, and step; a rank of several would have reduced gradients before."""
        rate = learning_rate(self._spec, self.updates, self._total_steps)
        norm = clip_gradients(self.model.parameters(), self._spec.gradient_clip)
        is_finite = norm < float("inf")
        if is_finite:
            for group in self._optimizer.param_groups:
                group["lr"] = rate
            self._optimizer.step()
        self.updates += 1
        return {
            f"{area}/grad_norm": norm,
            f"{area}/lr": rate,
            f"{area}/skipped": 0.0 if is_finite else 1.0,
        }


def _statistics(parts: list[LossParts], objective: Objective) -> dict[str, float]:
    """The mini-batch's statistics from its micro-batches'; zeros where none was computed."""
    tokens = max(1, sum(part.tokens for part in parts))
    return {
        **{name: sum(part.terms[name] for part in parts) for name in objective.term_names},
        **{
            name: sum(part.token_sums[name] for part in parts) / tokens
            for name in objective.token_names
        },
    }
