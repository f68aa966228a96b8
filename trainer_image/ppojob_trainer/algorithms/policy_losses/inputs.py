"""Inputs and results of policy losses, and the functions that they share.

Notation: ρ = π(a_t|s_t) / π_old(a_t|s_t), A the advantage. Shapes: (tokens,), flat.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ppojob_trainer.algorithms.masked import row_mean, zero_outside

LOG_RATIO_LIMIT = 20.0
"""Clamp of absolute log-ratios, so that ratios stay finite; no gradient beyond."""


@dataclass(frozen=True, slots=True)
class LossInputs:
    """Columns of a micro-batch: `tokens` tokens of `rows` responses."""

    logprobs: Tensor  # (tokens,) log π, with gradient
    old_logprobs: Tensor  # (tokens,) log π_old
    rollout_logprobs: Tensor  # (tokens,) log μ of the rollout engine
    advantages: Tensor  # (tokens,) A
    mask: Tensor  # (tokens,) bool, True at trained tokens
    lengths: Tensor  # (rows,) int64, tokens of each response
    groups: Tensor  # (rows,) int64, the prompt of each response
    ref_logprobs: Tensor | None = None  # (tokens,) log π_ref, if the job has a reference
    log_z: Tensor | None = None  # (tokens,) log Z of the row's prompt, with gradient, if learnt

    def trained(self, values: Tensor) -> Tensor:
        """Set masked tokens of a column to zero, without gradient."""
        return zero_outside(values, self.mask)

    def log_ratio(self) -> Tensor:
        """Return (tokens,) log ρ, with gradient; 0 at masked tokens."""
        return self.trained(self.logprobs) - self.trained(self.old_logprobs)

    def of_row(self, values: Tensor) -> Tensor:
        """Return the mean over the trained tokens of each token's row: (tokens,) -> (tokens,)."""
        means = row_mean(values, self.mask, self.lengths)
        return torch.repeat_interleave(means, self.lengths)


@dataclass(frozen=True, slots=True)
class LossOutput:
    """Result of a loss."""

    loss: Tensor  # (tokens,) with gradient; 0 at masked tokens
    metrics: Mapping[str, Tensor]  # (tokens,) without gradient; a metric is their mean


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """A row of `POLICY_LOSSES`."""

    compute: Callable[..., LossOutput]  # from `LossInputs` and options of `policyLoss`
    metrics: tuple[str, ...]  # keys of `LossOutput.metrics`, for ranks without rows
    # a row whose advantages are all zero has no gradient and changes no other's: updates skip it
    vanishes_without_advantage: bool = False


def bounded(log_ratio: Tensor) -> Tensor:
    """Clamp log-ratios to the limit; no gradient beyond it."""
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
