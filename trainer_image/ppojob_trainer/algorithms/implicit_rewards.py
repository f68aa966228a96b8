"""PRIME: implicit process rewards of tokens, in addition to the score of the response.

Process Reinforcement through Implicit Rewards (Cui et al. 2025, arXiv:2502.01456), section 3. The
process reward model φ is a language model, initialized as its reference ψ. A token's reward is `r_t
= β log(φ(y_t|s_t) / ψ(y_t|s_t))`; φ is trained on the outcomes o of responses, in [0, 1], by the
cross-entropy of `σ(Σ_t r_t)`. Numbers are those of verl's recipe `prime`. Shapes as in
`advantages`.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from ppojob_trainer.algorithms.advantages import Advantages, GroupScores, rloo
from ppojob_trainer.algorithms.masked import (
    returns_to_go,
    row_count,
    row_ends,
    row_sum,
    whiten,
    zero_outside,
)

NORM_EPSILON = 1e-6
"""Added to the largest return to go, as in verl."""


def outcome_loss(totals: Tensor, outcomes: Tensor) -> Tensor:
    """Return `-(o log σ(x) + (1 - o) log(1 - σ(x)))` of a row's total reward x: (rows,).

    Departs from verl: it is computed from x, where verl clamps log 0 to -100, without gradient.
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
    """Return to go of token rewards and scores, both relative to the group, whitened.

        p_t = r_t, 0 at the last token of a row, divided by max |Σ_{k≥t} r_k| + 1e-6
        u_t = w_p (n p_t - Σ_{j∈g} mean_t p_j) / (n - 1), plus w_o n/(n-1) (s - mean_g) at the last
        R_t = Σ_{k≥t} u_k, A = whiten(R)

    `token_rewards` (tokens,) sum to the scores s, `process_rewards` (tokens,) are r_t. Without
    `normalize` nothing is divided. A row alone in its group has no baseline. `kept` as in
    `advantages`: rows are compared over all trained tokens, and whitening uses the kept ones.

    Departs from verl: the maximum is over the whole step, in verl over the rows of a rank.
    """
    kept, dtype = mask if kept is None else kept, token_rewards.dtype
    rewards = without_ends(process_rewards, mask, lengths)
    if normalize:
        rewards = rewards / (_largest_return(rewards, mask, lengths) + NORM_EPSILON)
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
    returns = returns_to_go(earned + at_end, mask, lengths)
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
    """Return metrics of how well token rewards separate right from wrong responses; verl's names.

    `outcomes` (rows,) are the scores that the model learns. All are means over the rows with a
    trained token. `dpo_acc` is the mean over groups of the share of pairs with different outcomes
    that the rewards order correctly, weighted by the difference; 1/2 for a group without such
    pairs.
    """
    rows = torch.nonzero(row_count(mask, lengths) > 0).flatten()
    if rows.numel() == 0:
        return {}
    rewards = without_ends(process_rewards, mask, lengths)
    totals, wanted = row_sum(rewards, mask, lengths)[rows], outcomes.to(torch.float64)[rows]
    scale = _largest_return(rewards, mask, lengths) + NORM_EPSILON if normalize else 1.0
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
    """Return (tokens,) float64 rewards, 0 at masked tokens and at the last trained one of a row."""
    rewards = zero_outside(process_rewards, mask).to(torch.float64)
    ends = row_ends(mask, lengths)
    # A product, so that NaN stays NaN.
    rewards[ends] = rewards[ends] * 0.0
    return rewards


def _largest_return(rewards: Tensor, mask: Tensor, lengths: Tensor) -> Tensor:
    sums = returns_to_go(rewards, mask, lengths).abs()
    return sums.max() if sums.numel() else sums.sum()


def _pairs_in_order(totals: Tensor, outcomes: Tensor) -> float:
    """Return the weighted share of the pairs of a group that totals order as outcomes do."""
    first, second = torch.triu_indices(len(totals), len(totals), offset=1)
    wanted, predicted = outcomes[first] - outcomes[second], totals[first] - totals[second]
    weight = wanted.abs()
    if not weight.any():
        return 0.5
    return float(((predicted > 0) == (wanted > 0)).to(weight.dtype) @ weight / weight.sum())


PROCESS_ADVANTAGES = {"prime": prime}
"""Estimators with process rewards, by `spec.algorithm.type`."""
