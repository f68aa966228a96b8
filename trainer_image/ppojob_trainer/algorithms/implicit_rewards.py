"""PRIME: implicit process rewards of tokens, beside the score of the response.

Process Reinforcement through Implicit Rewards (Cui et al. 2025, arXiv:2502.01456), section 3. A
process reward model φ is a language model that begins as its reference ψ does. It gives a token
`r_t = β log(φ(y_t|s_t) / ψ(y_t|s_t))`, and learns the scores o of responses, shares of right in
[0, 1], by the cross entropy of `σ(Σ_t r_t)`: nobody labels steps. Numbers are those of verl's
recipe `prime`.

Shapes as in `advantages`.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from ppojob_trainer.algorithms.advantages import Advantages, GroupScores, rloo
from ppojob_trainer.algorithms.masked import (
    discounted_sum,
    row_count,
    row_ends,
    row_sum,
    whiten,
    zero_outside,
)

NORM_EPSILON = 1e-6
"""Added to the largest sum of rewards to come, as verl does."""


def outcome_loss(totals: Tensor, outcomes: Tensor) -> Tensor:
    """`-(o log σ(x) + (1 - o) log(1 - σ(x)))` of the sum x of a row's rewards: (rows,) -> (rows,).

    Departs from verl: the logarithms are of the sum, where verl's of a σ that has become 0 or 1 end
    at -100, without gradient.
    """
    return F.binary_cross_entropy_with_logits(totals, outcomes, reduction="none")


@torch.no_grad()
def prime(
    token_rewards: Tensor,
    process_rewards: Tensor,
    mask: Tensor,
    lengths: Tensor,
    groups: Tensor,
    *,
    process_weight: float,
    outcome_weight: float,
    normalize: bool = True,
    kept: Tensor | None = None,
) -> Advantages:
    """What each token and those behind it earn more than those of the other rows of the group.

    Rewards of tokens and scores are each compared in the group, leave-one-out, and added up:

        p_t = r_t but for the last token of a row, which has 0, divided by max |Σ_{k≥t} r_k| + 1e-6
        u_t = w_p (n p_t - Σ_{j∈g} mean_t p_j) / (n - 1), and w_o n/(n-1) (s - mean_g) at the last
        R_t = Σ_{k≥t} u_k, A = whiten(R)

    `token_rewards` (tokens,) add up to the scores s, `process_rewards` (tokens,) are r_t. Without
    `normalize` nothing is divided. A row alone in its group has no baseline. Of `kept` as in
    `advantages`: rows are compared by all trained tokens, whitened is what is kept.

    Departs from verl, besides what all estimators do: the largest sum is that of the whole step,
    where each rank takes that of its own rows.
    """
    kept, dtype = mask if kept is None else kept, token_rewards.dtype
    rewards = without_ends(process_rewards, mask, lengths)
    if normalize:
        rewards = rewards / (_largest_to_come(rewards, mask, lengths) + NORM_EPSILON)
    scores = GroupScores.of(token_rewards, mask, lengths, groups)
    counts = row_count(mask, lengths).clamp(min=1).repeat_interleave(lengths)
    means = GroupScores.of(rewards / counts, mask, lengths, groups)
    sizes = means.sizes.to(torch.float64)
    others = (sizes - 1).clamp(min=1)
    baselines = torch.where(sizes > 1, means.sum(means.base + means.offset) / others, 0.0)
    factor, baseline = (
        means.to_tokens(means.to_members(one))
        for one in (torch.where(sizes > 1, sizes / others, 1.0), baselines)
    )
    earned = process_weight * (rewards * factor - baseline)
    at_end = torch.zeros_like(earned)
    ends = row_ends(mask, lengths)
    at_end[ends] = outcome_weight * scores.to_tokens(rloo(scores))[ends]
    returns = _to_come(earned + at_end, mask, lengths)
    return Advantages(whiten(returns, kept).to(dtype), zero_outside(returns, kept).to(dtype))


@torch.no_grad()
def implicit_reward_metrics(
    process_rewards: Tensor,
    outcomes: Tensor,
    mask: Tensor,
    lengths: Tensor,
    groups: Tensor,
    *,
    beta: float,
    normalize: bool,
) -> dict[str, float]:
    """How well the rewards of tokens tell right responses from wrong ones; the names are verl's.

    `outcomes` (rows,) are the scores that the model learns. All are means over the rows with a
    trained token, but for `dpo_acc`: of the pairs of a group whose outcomes differ the share that
    the rewards order alike, weighed by the difference, 1/2 where there are none; a mean of groups.
    """
    rows = torch.nonzero(row_count(mask, lengths) > 0).flatten()
    if rows.numel() == 0:
        return {}
    rewards = without_ends(process_rewards, mask, lengths)
    totals, wanted = row_sum(rewards, mask, lengths)[rows], outcomes.to(torch.float64)[rows]
    scale = _largest_to_come(rewards, mask, lengths) + NORM_EPSILON if normalize else 1.0
    raw = row_sum(process_rewards.to(torch.float64), mask, lengths)[rows] / beta
    is_right = torch.sign(totals) == torch.sign(2.0 * wanted - 1.0)
    of_groups = [
        _pairs_in_order(totals[own], wanted[own])
        for own in (groups[rows] == group for group in dict.fromkeys(groups[rows].tolist()))
    ]
    return {
        "reward_model/reward": float(totals.mean() / scale),
        "reward_model/raw_reward": float(raw.mean()),
        "reward_model/dpo_acc": sum(of_groups) / len(of_groups),
        "reward_model/dpo_acc_abs": float(is_right.to(torch.float64).mean()),
    }


def without_ends(process_rewards: Tensor, mask: Tensor, lengths: Tensor) -> Tensor:
    """(tokens,) float64: the rewards, 0 at the last trained token of each row and outside.

    There the response is at its end, and its score says what it is worth.
    """
    rewards = zero_outside(process_rewards, mask).to(torch.float64)
    ends = row_ends(mask, lengths)
    # A product, so that what is no number stays seen.
    rewards[ends] = rewards[ends] * 0.0
    return rewards


def _to_come(values: Tensor, mask: Tensor, lengths: Tensor) -> Tensor:
    """(tokens,) float64: sums over each trained token and those behind it in its row."""
    sums = torch.zeros_like(values)
    sums[mask] = discounted_sum(values[mask], row_count(mask, lengths), 1.0)
    return sums


def _largest_to_come(rewards: Tensor, mask: Tensor, lengths: Tensor) -> Tensor:
    sums = _to_come(rewards, mask, lengths).abs()
    return sums.max() if sums.numel() else sums.sum()


def _pairs_in_order(totals: Tensor, outcomes: Tensor) -> float:
    """Share of the pairs of a group that totals order as outcomes do."""
    first, second = torch.triu_indices(len(totals), len(totals), offset=1)
    wanted, said = outcomes[first] - outcomes[second], totals[first] - totals[second]
    weight = wanted.abs()
    if not weight.any():
        return 0.5
    return float(((said > 0) == (wanted > 0)).to(weight.dtype) @ weight / weight.sum())


PROCESS_ADVANTAGES = {"prime": prime}
"""Every estimator that reads rewards of tokens, by the name of `spec.algorithm.type`."""
