"""TrainEngine: one model on one rank, what it says of rows, and how rows change it."""

from collections.abc import Mapping

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ppojob_api.v1alpha1.training import OptimizerSpec, TrainingSpec
from ppojob_trainer.engine.attention import use_packed_attention
from ppojob_trainer.engine.forward import packed_logprobs
from ppojob_trainer.engine.fused_logprobs import LogprobSettings
from ppojob_trainer.engine.objective import TOKEN_STATISTICS, Denominators, LossParts, Objective
from ppojob_trainer.engine.optimizer import (
    build_optimizer,
    clip_gradients,
    learning_rate,
    load_optimizer_tensors,
    optimizer_tensors,
)
from ppojob_trainer.engine.packing import plan_micro_batches
from ppojob_trainer.rows.experience import Experience

UPDATES = "updates"
"""Name of the engine's own tensor among the optimizer's: how many updates were done."""


class TrainEngine:
    """Packed forward passes and optimizer steps of one causal language model.

    The same rows, state and number of threads give the same bits. Micro-batches change memory and
    speed only. Dropout of the model's configuration is at work in updates, off in `logprobs`, and
    draws from torch's global generator, whose state belongs into a commit.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        optimizer: OptimizerSpec,
        training: TrainingSpec,
        total_steps: int,
        temperature: float,
    ) -> None:
        """Take over a model.

        Args:
            model: trained in place; its attention becomes the packed one.
            optimizer: AdamW and its schedule.
            training: micro-batches, autocast, recomputation.
            total_steps: optimizer steps of the whole job, for the schedule.
            temperature: of the sampling; log-probabilities are those of the sampled distribution.
        """
        self.model = model
        self.updates = 0
        self._spec = optimizer
        self._training = training
        self._total_steps = total_steps
        self._temperature = temperature
        use_packed_attention(model)
        if training.activation_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        self._optimizer = build_optimizer(model, optimizer)

    def logprobs(self, experience: Experience) -> tuple[Tensor, Tensor]:
        """Compute log pi(a_t|s_t) and the entropy of pi(.|s_t), without gradient or dropout.

        Returns:
            Both (tokens,) float32, in row order.
        """
        self.model.eval()
        logprobs = torch.empty(experience.num_tokens)
        entropy = torch.empty(experience.num_tokens)
        with torch.no_grad():
            for rows in self._micro_batches(experience, torch.arange(experience.num_rows)):
                place = experience.token_index(rows)
                values, spread = self._forward(experience.select(rows), "value")
                assert spread is not None, "it was asked for"
                logprobs[place], entropy[place] = values, spread
        return logprobs, entropy

    def update(
        self,
        experience: Experience,
        objective: Objective,
        denominators: Denominators | None = None,
    ) -> dict[str, float]:
        """One optimizer step on a mini-batch.

        Rows whose gradient is provably zero are not computed, and still count in the denominators.
        A gradient that is not finite leaves weights and moments untouched and is reported as
        `actor/skipped`; the schedule goes on.

        Args:
            experience: the mini-batch's rows on this rank, with advantages.
            objective: what is minimized.
            denominators: of the mini-batch over all ranks; None where this rank has all of it.

        Returns:
            Statistics by metric name. Losses are divided by the denominators; shares and means a
            token are over the tokens that were computed.
        """
        self.model.train()
        denominators = denominators or Denominators.of(experience)
        rows = torch.arange(experience.num_rows)
        if self._training.skip_zero_gradient_groups:
            rows = objective.rows_with_gradient(experience)
        self._clear_gradients()
        parts = [
            self._backward(experience.select(chosen), objective, denominators)
            for chosen in self._micro_batches(experience, rows)
        ]
        return {**_statistics(parts, objective), **self._step()}

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

    def _micro_batches(self, experience: Experience, rows: Tensor) -> list[Tensor]:
        """Row numbers of each micro-batch, out of `rows`."""
        plan = plan_micro_batches(
            experience.prompt_lengths.tolist(),
            experience.row_groups[rows].tolist(),
            experience.lengths[rows].tolist(),
            budget=self._training.micro_batch_tokens,
            share_prompts=self._training.share_prompts,
        )
        return [rows[torch.tensor(batch)] for batch in plan]

    def _forward(self, rows: Experience, entropy: str) -> tuple[Tensor, Tensor | None]:
        settings = LogprobSettings(self._temperature, self._training.logprob_chunk_tokens, entropy)
        device = self.model.device.type
        with torch.autocast(device, torch.bfloat16, enabled=self._training.autocast == "bfloat16"):
            return packed_logprobs(
                self.model, rows, settings, share_prompts=self._training.share_prompts
            )

    def _backward(
        self, rows: Experience, objective: Objective, denominators: Denominators
    ) -> LossParts:
        logprobs, entropy = self._forward(rows, objective.entropy_mode)
        parts = objective(logprobs, entropy, rows, denominators)
        torch.autograd.backward(parts.loss)
        return parts

    def _clear_gradients(self) -> None:
        """Zero gradients in place: fresh memory of that size costs more than the pass over it."""
        for parameter in self.model.parameters():
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self._optimizer.zero_grad(set_to_none=False)

    def _step(self) -> dict[str, float]:
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
            "actor/grad_norm": norm,
            "actor/lr": rate,
            "actor/skipped": 0.0 if is_finite else 1.0,
        }


def _statistics(parts: list[LossParts], objective: Objective) -> dict[str, float]:
    """The mini-batch's statistics from its micro-batches'; zeros where none was computed."""
    tokens = max(1, sum(part.tokens for part in parts))
    return {
        **{name: sum(part.terms[name] for part in parts) for name in objective.term_names},
        **{
            name: sum(part.token_sums[name] for part in parts) / tokens for name in TOKEN_STATISTICS
        },
    }
