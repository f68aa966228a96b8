"""Optimal token baselines: each token is compared with its group at the same position.

Notation: G_t the reward that is still to come at token t, π_t the probability of the token and Σπ²
the sum of the squared probabilities of the vocabulary, both of the policy before the update. The
squared gradient of log π_t in the logits is `1 - 2 π_t + Σπ²`; summed up to t it says how much a
response weighs at t. Shapes as in `advantages`; log π, Σπ² and w are (tokens,), w None for 1.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from ppojob_trainer.algorithms.advantages import Advantages
from ppojob_trainer.algorithms.masked import discounted_sum, row_count, row_max, segment_sum

WEIGHT_EPSILON = 1e-8
"""Added to the weights of a place, as verl does."""


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
    """Reward still to come, less what peers have to come at the same place of their responses.

    The Optimal Token Baseline (Li et al. 2026, arXiv:2602.07078) by its logit-gradient proxy:
    `A_t = G_t - B_t`, `B_t = Σ_g G_t W_t / (Σ_g W_t + 1e-8)` over the rows of the group
    that have a trained token at place t, `W_t = Σ_{j≤t} w_j² (1 - 2 π_j + Σπ²_j)`, w the weights of
    the rollout correction. A place counts all tokens of the response; with `counts_trained` the
    trained ones alone, so that what a tool has written moves no token to another place. Where one
    row alone goes on, behind the last trained token of all others, B = 0; so it is for a row alone
    in its group.

    Departs from verl: the module's notes of `advantages`. With masked tokens between trained ones
    verl takes the number of trained tokens of the second longest row for the place where the
    longest goes on alone; here it is behind that row's last one.
    """
    if counts_trained:
        places = torch.zeros_like(mask, dtype=torch.int64)
        places[mask] = _places(row_count(mask, lengths))
    else:
        places = _places(lengths)
    counts = row_count(mask, lengths)
    rewards = token_rewards.to(torch.float64)[mask]
    to_come = discounted_sum(rewards, counts, 1.0)
    # The sum up to a token is that of the whole row less what comes behind it.
    ahead = _weights(old_logprobs, sum_pi_squared, rollout_weights)[mask]
    behind = discounted_sum(ahead, counts, 1.0)
    summed = segment_sum(ahead, counts).repeat_interleave(counts) - behind + ahead
    baseline = _baseline(to_come, summed, _peers(groups, mask, lengths, places))
    baseline[_is_past_all_others(mask, lengths, groups, places)[mask]] = 0.0
    returns = torch.zeros(mask.shape, dtype=torch.float64)
    advantages = torch.zeros_like(returns)
    returns[mask], advantages[mask] = to_come, to_come - baseline
    dtype = token_rewards.dtype
    return Advantages(advantages.to(dtype), returns.to(dtype))


def _places(lengths: Tensor) -> Tensor:
    """0, 1, 2, ... within each row."""
    starts = lengths.cumsum(0) - lengths
    return torch.arange(int(lengths.sum())) - starts.repeat_interleave(lengths)


def _weights(
    old_logprobs: Tensor, sum_pi_squared: Tensor, rollout_weights: Tensor | None
) -> Tensor:
    """(tokens,) float64, the squared gradient of each token's log-probability."""
    squares = sum_pi_squared.to(torch.float64)
    energy = 1.0 - 2.0 * old_logprobs.to(torch.float64).exp() + squares
    return energy if rollout_weights is None else energy * rollout_weights.double().square()


def _peers(groups: Tensor, mask: Tensor, lengths: Tensor, places: Tensor) -> Tensor:
    """(trained tokens,) int64, one number for each place of a group."""
    width = int(places.max()) + 1 if places.numel() else 1
    numbers: Tensor = torch.searchsorted(groups.sort().values, groups)
    return (numbers.repeat_interleave(lengths) * width + places)[mask]


def _baseline(to_come: Tensor, weights: Tensor, peers: Tensor) -> Tensor:
    """Weighted mean of what is to come over the tokens of equal number, for each of them."""
    order = torch.argsort(peers, stable=True)
    _, sizes = torch.unique_consecutive(peers[order], return_counts=True)
    total = segment_sum((to_come * weights)[order], sizes)
    means = total / (segment_sum(weights[order], sizes) + WEIGHT_EPSILON)
    baseline = torch.empty_like(to_come)
    baseline[order] = means.repeat_interleave(sizes)
    return baseline


def _is_past_all_others(mask: Tensor, lengths: Tensor, groups: Tensor, places: Tensor) -> Tensor:
    """(tokens,) bool: behind the last trained token of all other rows of the group."""
    ends = row_max((places + 1).to(torch.float64), mask, lengths)
    alone_from = torch.zeros_like(ends)
    for group in sorted(set(groups.tolist())):
        rows = (groups == group).nonzero()[:, 0]
        # That of the second longest row; no other row reaches behind it.
        alone_from[rows] = torch.cat([ends[rows], ends.new_zeros(1)]).topk(2).values[1]
    return mask & (places >= alone_from.repeat_interleave(lengths))


TOKEN_BASELINES: dict[str, Callable[..., Advantages]] = {
    "optimal_token_baseline": optimal_token_baseline,
    "tir_optimal_token_baseline": partial(optimal_token_baseline, counts_trained=True),
}
"""Every estimator that reads the policy's probabilities, by the name of `spec.algorithm.type`."""
