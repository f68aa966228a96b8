"""Rollout correction of the trainer-engine mismatch: importance weights and rejection.

μ is the engine's distribution, π the trainer's for the same step, ρ = π / μ. They differ by
precision and kernels. Decoupled PPO (arXiv:2110.00641), equation 5: weights of π / μ correct the
loss of the policy in training. Weights and rejection by token and by response are those of Liu, Li
et al. 2025 (https://richardli.xyz/rl-collapse) and Trust Region Masking (arXiv:2512.23075).

Shapes: (tokens,), flat; lengths (rows,) int64. Numbers are those of verl's `rollout_corr_helper`,
with log ρ clamped to ±20.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import log
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ppojob_trainer.algorithms.masked import row_count, row_max, row_mean, row_sum, zero_outside
from ppojob_trainer.algorithms.policy_losses.inputs import bounded

LEAST_MEAN = 1e-8
"""Weights with a smaller mean are not normalized, as in verl."""

LEAST_WEIGHT = 1e-10
"""Added to weights before their logarithm, as in verl."""

Level = Literal["none", "token", "sequence"]


@dataclass(frozen=True, slots=True)
class Rejection:
    """Excludes tokens or responses that are too far from μ.

    Modes are `<over>_<divergence>`. Over: token, seq_sum, seq_mean or seq_max. Divergence: k1 =
    -log ρ, k2 = (log ρ)² / 2, k3 = ρ - 1 - log ρ.
    """

    mode: str
    high: float  # largest divergence; for k1 largest μ / π (of a response: product or mean)
    low: float | None = None  # for k1, smallest μ / π, except for seq_max; None: 1 / `high`

    @property
    def bounds(self) -> tuple[float, float]:
        """Return the smallest and largest accepted divergence."""
        if not self.mode.endswith("k1"):
            return 0.0, self.high
        least = 1.0 / self.high if self.low is None else self.low
        return 0.0 if self.mode == "seq_max_k1" else log(least), log(self.high)

    @property
    def is_of_rows(self) -> bool:
        """Whether it rejects whole responses."""
        return not self.mode.startswith("token")


@dataclass(frozen=True, slots=True)
class Correction:
    """Settings of importance weights and rejection."""

    weights: Level = "none"  # whether ρ of the token or of the response weights the loss
    weight_limit: float = 2.0  # larger weights are clamped, or with `weight_floor` become 0
    weight_floor: float | None = None  # smaller weights become 0
    normalize: bool = False  # divide weights by their mean over the batch
    rejection: tuple[Rejection, ...] = ()  # a token must pass all of them

    @classmethod
    def of(cls, *, rejection: Iterable[Mapping[str, Any]], **weights: Any) -> "Correction":
        """Build it from the fields of `spec.algorithm.rolloutCorrection`."""
        return cls(**weights, rejection=tuple(Rejection(**one) for one in rejection))


class Judged(NamedTuple):
    """Result of a rejection for each token."""

    divergence: Tensor  # (tokens,) of the token or its response
    is_kept: Tensor  # (tokens,) bool, also True at masked tokens


@dataclass(frozen=True, slots=True)
class Corrected:
    """Result of a correction of some rows."""

    log_ratio: Tensor  # (tokens,) log ρ, not clamped; 0 at masked tokens
    mask: Tensor  # (tokens,) bool, without rejected tokens
    ratio: Tensor | None  # (tokens,) ρ of the token or response, not clamped; None without weights
    weights: Tensor | None  # (tokens,) factors of the loss; None without weights
    mean: float  # divisor of the weights
    judged: dict[str, Judged]  # by mode

    def beside(self, others: Tensor) -> "Corrected":
        """Add tokens (tokens,) bool that no engine generated: they have weight 1."""
        weights = None if self.weights is None else torch.where(others, 1.0, self.weights)
        return replace(self, mask=self.mask | others, weights=weights)


def correct(
    correction: Correction,
    logprobs: Tensor,
    rollout_logprobs: Tensor,
    mask: Tensor,
    lengths: Tensor,
) -> Corrected:
    """Compute weights and rejection.

    They are independent, as in verl: rejected tokens count in a response's ratio and in the mean.
    """
    log_ratio = zero_outside(logprobs.detach(), mask) - zero_outside(rollout_logprobs, mask)
    judged = {one.mode: judge(one, log_ratio, mask, lengths) for one in correction.rejection}
    kept = mask
    for one in judged.values():
        kept = kept & one.is_kept
    if correction.weights == "none":
        return Corrected(log_ratio, kept, None, None, 1.0, judged)
    ratio = importance_ratio(log_ratio, mask, lengths, correction.weights)
    weights = within_bounds(ratio, correction.weight_limit, correction.weight_floor)
    mean = mean_weight(weights, mask, lengths, correction.weights) if correction.normalize else 1.0
    return Corrected(log_ratio, kept, ratio, weights / mean, mean, judged)


def importance_ratio(log_ratio: Tensor, mask: Tensor, lengths: Tensor, level: Level) -> Tensor:
    """Return ρ of the token, or its product over the response: (tokens,), 0 at masked tokens."""
    if level == "sequence":
        log_ratio = row_sum(log_ratio, mask, lengths).repeat_interleave(lengths)
    return zero_outside(bounded(log_ratio).exp(), mask)


def within_bounds(ratio: Tensor, limit: float, floor: float | None) -> Tensor:
    """Clamp ratios to the limit, or with a floor set those outside of both to 0.

    Truncated importance sampling (Yao et al. 2025, https://fengyao.notion.site/off-policy-rl) and
    IcePop (Ring-1T, arXiv:2510.18855), equation 3.
    """
    if floor is None:
        return ratio.clamp(max=limit)
    return torch.where((ratio >= floor) & (ratio <= limit), ratio, 0.0)


def mean_weight(weights: Tensor, mask: Tensor, lengths: Tensor, level: Level) -> float:
    """Return the mean over trained tokens, or over responses with some; 1 for a mean of 0."""
    if level == "sequence":
        has_some = row_count(mask, lengths) > 0
        weights, mask = row_mean(weights, mask, lengths), has_some
    trained = weights[mask].to(torch.float64)
    mean = float(trained.mean()) if trained.numel() else 1.0
    return mean if mean > LEAST_MEAN else 1.0


def judge(rejection: Rejection, log_ratio: Tensor, mask: Tensor, lengths: Tensor) -> Judged:
    """Apply a rejection to all tokens; log ρ is 0 at masked tokens."""
    over, _, kind = rejection.mode.rpartition("_")
    divergence = _divergence(bounded(log_ratio), kind)
    if rejection.is_of_rows:
        summed = _OVER_ROWS[over](divergence, mask, lengths)
        divergence = summed.repeat_interleave(lengths)
    low, high = rejection.bounds
    return Judged(divergence, (divergence >= low) & (divergence <= high))


def row_weights(weights: Tensor, mask: Tensor, lengths: Tensor) -> Tensor:
    """Return (tokens,) the geometric mean of the weights of each token's response.

    For losses with one value per response, as verl's `geo_mean`.
    """
    means = row_mean((weights + LEAST_WEIGHT).log(), mask, lengths).exp()
    return means.repeat_interleave(lengths)


def _divergence(log_ratio: Tensor, kind: str) -> Tensor:
    if kind == "k1":
        return -log_ratio
    if kind == "k2":
        return 0.5 * log_ratio.square()
    return log_ratio.exp() - 1.0 - log_ratio


_OVER_ROWS = {"seq_sum": row_sum, "seq_mean": row_mean, "seq_max": row_max}
