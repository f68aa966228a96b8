"""Inputs and results of policy losses, and functions that they share.

Notation: ρ = π(a_t|s_t) / π_old(a_t|s_t), A the advantage. Shapes: (tokens,), flat.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ppojob_trainer.algorithms.masked import row_mean, zero_outside

LOG_RATIO_LIMIT = 20.0
"""Absolute log-ratio beyond which it is cut off, with no gradient, so that ratios stay finite."""


@dataclass(frozen=True, slots=True)
class LossInputs:
    """All that a loss may read of a micro-batch: `tokens` tokens of `rows` responses.

    Attributes:
        logprobs: (tokens,) log π, with gradient.
        old_logprobs: (tokens,) log π_old.
        rollout_logprobs: (tokens,) log μ of the engine that drew the tokens.
        advantages: (tokens,) A.
        mask: (tokens,) bool, True where the token is trained.
        lengths: (rows,) int64, tokens of each response.
        groups: (rows,) int64, the prompt of each response.
        ref_logprobs: (tokens,) log π_ref, where the job asks the reference for them; else None.
        log_z: (tokens,) log Z of the row's prompt, with gradient, where a network learns it.
    """

    logprobs: Tensor
    old_logprobs: Tensor
    rollout_logprobs: Tensor
    advantages: Tensor
    mask: Tensor
    lengths: Tensor
    groups: Tensor
    ref_logprobs: Tensor | None = None
    log_z: Tensor | None = None

    def trained(self, values: Tensor) -> Tensor:
        """A column with zeros, and no gradient, where a token is not trained."""
        return zero_outside(values, self.mask)

    def log_ratio(self) -> Tensor:
        """(tokens,) log ρ, with gradient; 0 where a token is not trained."""
        return self.trained(self.logprobs) - self.trained(self.old_logprobs)

    def of_row(self, values: Tensor) -> Tensor:
        """Each token's row mean over its trained tokens: (tokens,) -> (tokens,)."""
        means = row_mean(values, self.mask, self.lengths)
        return torch.repeat_interleave(means, self.lengths)


@dataclass(frozen=True, slots=True)
class LossOutput:
    """What a loss gives back.

    Attributes:
        loss: (tokens,) to be minimized, with gradient; 0 where `mask` is False.
        metrics: (tokens,) each, without gradient, by the name of the metric that is their mean.
    """

    loss: Tensor
    metrics: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """A policy loss of `POLICY_LOSSES`.

    Attributes:
        compute: from `LossInputs` and the options of `spec.algorithm.policyLoss` to `LossOutput`.
        metrics: names of what `LossOutput.metrics` holds: a rank without rows has to know them.
        vanishes_without_advantage: a row whose advantages are all zero has no gradient, and changes
            that of no other, so an update may leave it out.
    """

    compute: Callable[..., LossOutput]
    metrics: tuple[str, ...]
    vanishes_without_advantage: bool = False


def bounded(log_ratio: Tensor) -> Tensor:
    """A log-ratio that `exp` takes; beyond the limit there is no gradient."""
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
