"""Rollout correction of the trainer-engine mismatch: importance weights and rejection.

Notation: μ is the engine's distribution, π that of the trainer for the same step, ρ = π / μ.
They differ by the precision and the kernels of the two. Decoupled PPO (arXiv:2110.00641), equation
5, has three policies: μ that sampled, π that a step begins with, and the one that is trained, whose
loss a weight of π / μ corrects. Liu, Li et al. 2025 (https://richardli.xyz/rl-collapse) and Trust
Region Masking (arXiv:2512.23075) have the weights and the rejection by tokens and by responses.

Shapes: (tokens,), flat; lengths (rows,) int64. Numbers are those of verl's `rollout_corr_helper`,
log ρ cut off at ±20.
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
"""Weights of a smaller mean are not divided by it, as in verl."""

LEAST_WEIGHT = 1e-10
"""Added to weights before their logarithm, as in verl: a weight may be 0."""

Level = Literal["none", "token", "sequence"]


@dataclass(frozen=True, slots=True)
class Rejection:
    """Tokens or responses that went too far from μ are not trained on.

    Attributes:
        mode: `<over>_<divergence>`; over: token, seq_sum, seq_mean or seq_max; divergence: k1 =
            -log ρ, k2 = (log ρ)² / 2, k3 = ρ - 1 - log ρ.
        low: with k1, the least μ / π (over a response: of its product, or geometric mean); not of
            seq_max, where a token that π finds likelier rejects nothing.
        high: with k1, the largest; with the others, the largest divergence.
    """

    mode: str
    high: float
    low: float | None = None

    @property
    def bounds(self) -> tuple[float, float]:
        """Least and largest value of the divergence."""
        if not self.mode.endswith("k1"):
            return 0.0, self.high
        least = 1.0 / self.high if self.low is None else self.low
        return 0.0 if self.mode == "seq_max_k1" else log(least), log(self.high)

    @property
    def is_of_rows(self) -> bool:
        """Whether it judges whole responses."""
        return not self.mode.startswith("token")


@dataclass(frozen=True, slots=True)
class Correction:
    """How tokens are weighed, and which are rejected.

    Attributes:
        weights: whose ρ a token's loss is weighted by: none, the token's, or the whole response's.
        weight_limit: weights above count as this; with `weight_floor` as 0.
        weight_floor: weights below count as 0; None for no such bound.
        normalize: divide the weights by their mean over the batch.
        rejection: every mode must keep a token.
    """

    weights: Level = "none"
    weight_limit: float = 2.0
    weight_floor: float | None = None
    normalize: bool = False
    rejection: tuple[Rejection, ...] = ()

    @classmethod
    def of(cls, *, rejection: Iterable[Mapping[str, Any]], **weights: Any) -> "Correction":
        """From the settings of `spec.algorithm.rolloutCorrection`, by the names of the fields."""
        return cls(**weights, rejection=tuple(Rejection(**one) for one in rejection))


class Judged(NamedTuple):
    """The divergence (tokens,) of the token or its response, and whether it is kept.

    `is_kept` is True also where the token was not trained before.
    """

    divergence: Tensor
    is_kept: Tensor


@dataclass(frozen=True, slots=True)
class Corrected:
    """A correction of some rows.

    Attributes:
        log_ratio: (tokens,) log ρ, 0 outside the mask; not cut off.
        mask: (tokens,) bool, what is still trained on.
        ratio: (tokens,) ρ of the token or its response, before any bound; None without weights.
        weights: (tokens,) to multiply losses with; None without weights.
        mean: what the weights were divided by; 1 where they were not.
        judged: by the mode of each rejection.
    """

    log_ratio: Tensor
    mask: Tensor
    ratio: Tensor | None
    weights: Tensor | None
    mean: float
    judged: dict[str, Judged]

    def beside(self, others: Tensor) -> "Corrected":
        """The same with other tokens, (tokens,) bool, that no engine drew: they count whole."""
        weights = None if self.weights is None else torch.where(others, 1.0, self.weights)
        return replace(self, mask=self.mask | others, weights=weights)


def correct(
    correction: Correction,
    logprobs: Tensor,
    rollout_logprobs: Tensor,
    mask: Tensor,
    lengths: Tensor,
) -> Corrected:
    """Weigh and reject tokens.

    Weights and rejection do not see each other: a rejected token still counts in a response's
    product and in the mean of the weights, as in verl.
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
    """How much likelier the trainer is than the engine to write this: (tokens,), 0 if not trained.

    Of the token, ρ; of the sequence, the product of ρ over the trained tokens of the response.
    """
    if level == "sequence":
        log_ratio = row_sum(log_ratio, mask, lengths).repeat_interleave(lengths)
    return zero_outside(bounded(log_ratio).exp(), mask)


def within_bounds(ratio: Tensor, limit: float, floor: float | None) -> Tensor:
    """Weights of ratios: cut off at the limit, or, with a floor, 0 outside of both.

    Truncated importance sampling (Yao et al. 2025, https://fengyao.notion.site/off-policy-rl) and
    IcePop (Ring-1T, arXiv:2510.18855), equation 3.
    """
    if floor is None:
        return ratio.clamp(max=limit)
    return torch.where((ratio >= floor) & (ratio <= limit), ratio, 0.0)


def mean_weight(weights: Tensor, mask: Tensor, lengths: Tensor, level: Level) -> float:
    """The mean over trained tokens, or over responses that have some; 1 for a mean of 0."""
    if level == "sequence":
        has_some = row_count(mask, lengths) > 0
        weights, mask = row_mean(weights, mask, lengths), has_some
    kept = weights[mask].to(torch.float64)
    mean = float(kept.mean()) if kept.numel() else 1.0
    return mean if mean > LEAST_MEAN else 1.0


def judge(rejection: Rejection, log_ratio: Tensor, mask: Tensor, lengths: Tensor) -> Judged:
    """What a rejection says of every token; log ρ is 0 outside the mask."""
    over, _, kind = rejection.mode.rpartition("_")
    divergence = _divergence(bounded(log_ratio), kind)
    if rejection.is_of_rows:
        summed = _OVER_ROWS[over](divergence, mask, lengths)
        divergence = summed.repeat_interleave(lengths)
    low, high = rejection.bounds
    return Judged(divergence, (divergence >= low) & (divergence <= high))


def row_weights(weights: Tensor, mask: Tensor, lengths: Tensor) -> Tensor:
    """(tokens,) each token's weight is the geometric mean over its response.

    For a loss that is one number a response, as verl does for `geo_mean`.
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
