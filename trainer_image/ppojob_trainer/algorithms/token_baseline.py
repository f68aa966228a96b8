"""Optimal token baselines: each token is compared with its group at the same position.

Notation: G_t the return to go of token t, π_t the probability of the token and Σπ² the sum of the
squared probabilities of the vocabulary, both of the policy before the update. The squared gradient
of log π_t in the logits is `1 - 2 π_t + Σπ²`. Shapes as in `advantages`; log π, Σπ² and w are
(tokens,), w None for 1.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from ppojob_trainer.algorithms.advantages import Advantages
from ppojob_trainer.algorithms.masked import (
    discounted_sum,
    returns_to_go,
    row_count,
    row_max,
    segment_sum,
)

WEIGHT_EPSILON = 1e-8
"""Added to the weights of a position, as in verl."""


@torch.no_grad()
def optimal_token_baseline(
    token_rewards: Tensor,
    mask: Tensor,
    lengths: Tensor,
    groups: Tensor,
    *,
    old_logprobs: Tensor,
    sum_pi_squared: Tensor,
    rollout_weights: Tensor | None = None,
    counts_trained: bool = False,
) -> Advantages:
    """Return to go, minus the weighted mean of the group at the same position.

    The Optimal Token Baseline (Li et al. 2026, arXiv:2602.07078) by its logit-gradient proxy: `A_t
    = G_t - B_t`, `B_t = Σ_g G_t W_t / (Σ_g W_t + 1e-8)` over the rows of the group with a trained
    token at position t, `W_t = Σ_{j≤t} w_j² (1 - 2 π_j + Σπ²_j)`, w the weights of the rollout
    correction. Positions count all tokens of the response; with `counts_trained` only the trained
    ones, so tool output shifts no token. B = 0 after the last trained token of all other rows of
    the group.

    Departs from verl: see `advantages`. With masked tokens between trained ones verl takes the
    number of trained tokens of the second longest row for the position from which the longest is
    alone.
    """
    counts = row_count(mask, lengths)
    if counts_trained:
        places = torch.zeros_like(mask, dtype=torch.int64)
        places[mask] = _places(counts)
    else:
        places = _places(lengths)
    returns = returns_to_go(token_rewards, mask, lengths)
    # The sum up to a token is the sum of the row minus the sum after it.
    ahead = _weights(old_logprobs, sum_pi_squared, rollout_weights)[mask]
    behind = discounted_sum(ahead, counts, 1.0)
    summed = segment_sum(ahead, counts).repeat_interleave(counts) - behind + ahead
    baseline = _baseline(returns[mask], summed, _peers(groups, mask, lengths, places))
    baseline[_is_past_all_others(mask, lengths, groups, places)[mask]] = 0.0
    advantages = returns.clone()
    advantages[mask] -= baseline
    dtype = token_rewards.dtype
    return Advantages(advantages.to(dtype), returns.to(dtype))


def _places(lengths: Tensor) -> Tensor:
    """Return positions 0, 1, 2, ... within each row."""
    starts = lengths.cumsum(0) - lengths
    return torch.arange(int(lengths.sum())) - starts.repeat_interleave(lengths)


def _weights(
    old_logprobs: Tensor, sum_pi_squared: Tensor, rollout_weights: Tensor | None
) -> Tensor:
    """Return (tokens,) float64, the squared gradient of each token's log-probability."""
    squares = sum_pi_squared.to(torch.float64)
    energy = 1.0 - 2.0 * old_logprobs.to(torch.float64).exp() + squares
    return energy if rollout_weights is None else energy * rollout_weights.double().square()


def _peers(groups: Tensor, mask: Tensor, lengths: Tensor, places: Tensor) -> Tensor:
    """Return (trained tokens,) int64, one number for each position of a group."""
    width = int(places.max()) + 1 if places.numel() else 1
    numbers: Tensor = torch.searchsorted(groups.sort().values, groups)
    return (numbers.repeat_interleave(lengths) * width + places)[mask]


def _baseline(returns: Tensor, weights: Tensor, peers: Tensor) -> Tensor:
    """Return the weighted mean return of the tokens with equal number, for each token."""
    order = torch.argsort(peers, stable=True)
    _, sizes = torch.unique_consecutive(peers[order], return_counts=True)
    total = segment_sum((returns * weights)[order], sizes)
    means = total / (segment_sum(weights[order], sizes) + WEIGHT_EPSILON)
    baseline = torch.empty_like(returns)
    baseline[order] = means.repeat_interleave(sizes)
    return baseline


def _is_past_all_others(mask: Tensor, lengths: Tensor, groups: Tensor, places: Tensor) -> Tensor:
    """Return (tokens,) bool, True after the last trained token of all other rows of the group."""
    ends = row_max((places + 1).to(torch.float64), mask, lengths)
    alone_from = torch.zeros_like(ends)
    for group in sorted(set(groups.tolist())):
        rows = (groups == group).nonzero()[:, 0]
        # The end of the second longest row.
        alone_from[rows] = torch.cat([ends[rows], ends.new_zeros(1)]).topk(2).values[1]
    return mask & (places >= alone_from.repeat_interleave(lengths))


TOKEN_BASELINES: dict[str, Callable[..., Advantages]] = {
    "optimal_token_baseline": optimal_token_baseline,
    "tir_optimal_token_baseline": partial(optimal_token_baseline, counts_trained=True),
}
"""Estimators that read the policy's probabilities, by `spec.algorithm.type`."""
