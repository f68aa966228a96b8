"""Metrics of the trainer-engine mismatch, and of its correction.

Names and numbers are verl's, `rollout_corr/...`; π, μ and ρ as in `rollout_correction`.

Departs from verl: responses without a trained token are left out (in verl some means count them as
ratios of 1); log ρ is clamped to ±20 in `k3_kl` too; the effective sample size of weights that are
all 0 is NaN, where verl raises an error.
"""

from math import log

import torch
from torch import Tensor

from ppojob_trainer.algorithms.masked import row_count, row_mean, row_sum
from ppojob_trainer.algorithms.policy_losses.inputs import LOG_RATIO_LIMIT, bounded
from ppojob_trainer.algorithms.rollout_correction import (
    Corrected,
    Correction,
    Judged,
    Rejection,
    correct,
)

AREA = "rollout_corr"


class _Rows:
    """Reduces values over trained tokens, and over the rows that have some."""

    def __init__(self, mask: Tensor, lengths: Tensor) -> None:
        self.mask, self.lengths = mask, lengths
        self.has_some = row_count(mask, lengths) > 0

    def tokens(self, values: Tensor) -> Tensor:
        """(trained tokens,) float64."""
        return values[self.mask].to(torch.float64)

    def means(self, values: Tensor) -> Tensor:
        """(rows with some,) float64, the mean over each row's tokens."""
        return row_mean(values.to(torch.float64), self.mask, self.lengths)[self.has_some]

    def sums(self, values: Tensor) -> Tensor:
        """(rows with some,) float64, the sum over each row's tokens."""
        return row_sum(values.to(torch.float64), self.mask, self.lengths)[self.has_some]


def diagnostics(
    correction: Correction,
    corrected: Corrected,
    logprobs: Tensor,
    rollout_logprobs: Tensor,
    mask: Tensor,
    lengths: Tensor,
) -> dict[str, float]:
    """Return all metrics of a batch; `mask` is that before rejection; none without tokens."""
    if not bool(mask.any()):
        return {}
    rows = _Rows(mask, lengths)
    found = _distances(corrected.log_ratio, logprobs, rollout_logprobs, rows)
    if corrected.weights is not None:
        found |= _of_weights(correction, corrected, rows)
    for one in correction.rejection:
        found |= _of_rejection(one, corrected.judged[one.mode], rows)
    if correction.rejection:
        found |= _shares_rejected("rollout_rs", ~corrected.mask, rows)
    return {f"{AREA}/{name}": float(value) for name, value in found.items()}


def token_diagnostics(correction: Correction, corrected: Corrected) -> dict[str, Tensor]:
    """Return the metrics that are means over tokens, as (tokens,) columns, of a micro-batch."""
    log_ratio = bounded(corrected.log_ratio)
    found = {
        "k3_kl": log_ratio.exp() - log_ratio - 1.0,
        "chi2_token": (2.0 * log_ratio).exp() - 1.0,
    }
    if corrected.weights is not None and corrected.ratio is not None:
        low = _floor(correction)
        found["rollout_is_mean"] = corrected.weights
        found["rollout_is_ratio_fraction_high"] = corrected.ratio > correction.weight_limit
        found["rollout_is_ratio_fraction_low"] = corrected.ratio < low
    for mode, judged in corrected.judged.items():
        found[f"rollout_rs_{mode}_masked_fraction"] = ~judged.is_kept
    if correction.rejection:
        found["rollout_rs_masked_fraction"] = ~corrected.mask
    return {f"{AREA}/{name}": values.to(log_ratio.dtype) for name, values in found.items()}


def token_diagnostic_names(correction: Correction) -> tuple[str, ...]:
    """Return the names of `token_diagnostics`."""
    none = torch.zeros(0)
    corrected = correct(correction, none, none, none.bool(), none.long())
    return tuple(token_diagnostics(correction, corrected))


def _distances(
    log_ratio: Tensor, logprobs: Tensor, rollout_logprobs: Tensor, rows: _Rows
) -> dict[str, Tensor]:
    ours, theirs = rows.means(logprobs), rows.means(rollout_logprobs)
    further = theirs - ours
    by_token = bounded(rows.tokens(log_ratio))
    by_row = bounded(rows.sums(log_ratio))
    return {
        "training_ppl": (-ours).exp().mean(),
        "training_log_ppl": -ours.mean(),
        "rollout_ppl": (-theirs).exp().mean(),
        "rollout_log_ppl": -theirs.mean(),
        "kl": -rows.tokens(log_ratio).mean(),
        "k3_kl": (by_token.exp() - by_token - 1.0).mean(),
        "log_ppl_diff": further.mean(),
        "log_ppl_abs_diff": further.abs().mean(),
        "log_ppl_diff_max": further.max(),
        "log_ppl_diff_min": further.min(),
        "ppl_ratio": further.exp().mean(),
        "chi2_token": (2.0 * by_token).exp().mean() - 1.0,
        "chi2_seq": (2.0 * by_row).exp().mean() - 1.0,
    }


def _of_weights(correction: Correction, corrected: Corrected, rows: _Rows) -> dict[str, Tensor]:
    """Return metrics of the weights before normalization."""
    assert corrected.weights is not None
    assert corrected.ratio is not None
    weights, ratio = corrected.weights * corrected.mean, corrected.ratio
    limit, floor = correction.weight_limit, _floor(correction)
    by_token, by_row, raw_by_row = rows.tokens(weights), rows.means(weights), rows.means(ratio)
    mean = by_token.mean()
    found = {
        "mean": mean,
        "std": (by_token.square().mean() - mean.square()).clamp(min=0.0).sqrt(),
        "eff_sample_size": mean.square() / by_token.square().mean(),
        **_of_rows(by_row),
        "seq_max_deviation": (by_row - 1.0).abs().max(),
        "seq_fraction_high": _share(raw_by_row > limit),
        "seq_fraction_low": _share(raw_by_row < floor),
    }
    if correction.weights == "sequence":
        sums = rows.sums(corrected.log_ratio)
        found["max"] = sums.max().clamp(max=LOG_RATIO_LIMIT).exp()
        found["min"] = sums.min().exp()
        found["ratio_fraction_high"] = _share(sums > log(limit))
        found["ratio_fraction_low"] = _share(sums < log(floor))
    else:
        raw = rows.tokens(ratio)
        found["max"], found["min"] = by_token.max(), by_token.min()
        found["ratio_fraction_high"] = _share(raw > limit)
        found["ratio_fraction_low"] = _share(raw < floor)
    if correction.weight_floor is not None:
        raw = rows.tokens(ratio)
        found["oob_ratio"] = _share((raw < correction.weight_floor) | (raw > limit))
    if correction.normalize:
        found["batch_norm_factor"] = mean.new_tensor(corrected.mean)
    return {f"rollout_is_{name}": value for name, value in found.items()}


def _of_rejection(rejection: Rejection, judged: Judged, rows: _Rows) -> dict[str, Tensor]:
    """Return metrics of the divergence of a mode, and of the rejected tokens."""
    low, high = rejection.bounds
    by_token, by_row = rows.tokens(judged.divergence), rows.means(judged.divergence)
    extremes = by_row if rejection.is_of_rows else by_token
    clamped = by_token.clamp(low, high)
    variance = clamped.square().mean() - clamped.mean().square()
    found = {
        "mean": by_token.mean(),
        "max": extremes.max(),
        "min": extremes.min(),
        "std": variance.clamp(min=0.0).sqrt(),
        "fraction_high": _share(extremes > high),
        "fraction_low": _share(extremes < low),
        **_of_rows(by_row),
        "seq_max_deviation": by_row.abs().max(),
        "seq_fraction_high": _share(by_row > high),
    }
    if rejection.mode.endswith("k1"):
        found["seq_fraction_low"] = _share(by_row < low)
    prefix = f"rollout_rs_{rejection.mode}"
    named = {f"{prefix}_{name}": value for name, value in found.items()}
    return named | _shares_rejected(prefix, ~judged.is_kept, rows)


def _shares_rejected(prefix: str, is_rejected: Tensor, rows: _Rows) -> dict[str, Tensor]:
    """Return the shares of rejected tokens, and of responses with at least one."""
    rejected = rows.tokens(is_rejected)
    return {
        f"{prefix}_masked_fraction": rejected.mean(),
        f"{prefix}_seq_masked_fraction": _share(rows.sums(is_rejected) > 0),
    }


def _floor(correction: Correction) -> float:
    if correction.weight_floor is None:
        return 1.0 / correction.weight_limit
    return correction.weight_floor


def _share(is_one: Tensor) -> Tensor:
    return is_one.to(torch.float64).mean()


def _of_rows(values: Tensor) -> dict[str, Tensor]:
    deviation = values.std() if len(values) > 1 else values.new_zeros(())
    statistics = {"mean": values.mean(), "std": deviation, "max": values.max(), "min": values.min()}
    return {f"seq_{name}": value for name, value in statistics.items()}
