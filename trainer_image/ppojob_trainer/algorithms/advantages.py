"""Advantage estimators that need no critic: how much better a response did than its peers.

All take the rewards of a whole step (batch statistics need every row), are pure, keep no graph, and
share one signature:

    estimator(token_rewards, mask, lengths, groups, *, own options) -> Advantages

Notation: r_t the reward of token t, m_t the mask, s = Σ_t m_t r_t the score of a row, g the group
of rows that answer one prompt, n the rows of a group. Shapes: `tokens` response tokens of `rows`
rows, flat and in row order (see `masked`). Rows of a group need not be neighbours.

Arithmetic is done in float64 and given back in the dtype of the rewards. Group means are taken of
the differences to the group's first score, so a group of equal scores has advantage exactly 0 in
any precision, and a step can leave it out of the update.

Departs from verl, in every estimator:
    - verl sums the rewards of all tokens into the score, masked ones included. Here masked tokens
      (tool output) neither give nor take reward: reward of a row belongs on a trained token.
    - A row without a trained token is no member of its group here: it has advantage 0 and changes
      no baseline. verl counts it, with its reward, in the baseline.
    - The result is 0 at masked tokens, returns included.
    On rows with no masked tokens but padding the numbers are verl's.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ppojob_trainer.algorithms.masked import (
    row_count,
    row_sum,
    segment_sum,
    whiten,
    zero_outside,
)

STD_EPSILON = 1e-6
"""Added to a group's standard deviation by `grpo`, as verl does."""


@dataclass(frozen=True, slots=True)
class Advantages:
    """What an estimator gives back; both are 0 at masked tokens.

    Attributes:
        advantages: (tokens,) A_t, the weight of each token in the policy gradient.
        returns: (tokens,) R_t, what a critic would be fitted to.
    """

    advantages: Tensor
    returns: Tensor


@dataclass(frozen=True, slots=True)
class _Groups:
    """The rows that hold a trained token, sorted by group, and how to get back.

    Attributes:
        rows: (members,) the rows, those of one group side by side, else in row order.
        sizes: (groups,) members of each group.
        of_member: (members,) the group of each member.
        first: (groups,) position in `rows` of each group's first member.
    """

    rows: Tensor
    sizes: Tensor
    of_member: Tensor
    first: Tensor

    @classmethod
    def of(cls, groups: Tensor, counts: Tensor) -> "_Groups":
        members = torch.nonzero(counts > 0).flatten()
        rows = members[torch.argsort(groups[members], stable=True)]
        _, of_member, sizes = torch.unique_consecutive(
            groups[rows], return_inverse=True, return_counts=True
        )
        return cls(rows, sizes, of_member, sizes.cumsum(0) - sizes)

    def sum(self, values: Tensor) -> Tensor:
        """Sum a column of members within each group: (members,) -> (groups,)."""
        return segment_sum(values, self.sizes)

    def mean(self, values: Tensor) -> Tensor:
        """Average a column of members within each group: (members,) -> (groups,)."""
        return self.sum(values) / self.sizes

    def spread(self, values: Tensor) -> Tensor:
        """Give each member its group's value: (groups,) -> (members,)."""
        return values[self.of_member]


@dataclass(frozen=True, slots=True)
class _Scores:
    """Scores of the rows, relative to the first score of their group.

    Attributes:
        groups: who belongs together.
        base: (members,) the first score of the member's group.
        offset: (members,) score minus `base`, exactly 0 throughout a group of equal scores.
        tokens: (members,) trained tokens of the row, float64.
    """

    groups: _Groups
    base: Tensor
    offset: Tensor
    tokens: Tensor

    @classmethod
    def of(cls, token_rewards: Tensor, mask: Tensor, lengths: Tensor, groups: Tensor) -> "_Scores":
        counts = row_count(mask, lengths)
        members = _Groups.of(groups, counts)
        scores = row_sum(token_rewards.to(torch.float64), mask, lengths)[members.rows]
        base = members.spread(scores[members.first])
        return cls(members, base, scores - base, counts[members.rows].to(torch.float64))

    def minus(self, baseline_offset: Tensor) -> Tensor:
        """Score minus baseline of each member.

        A row alone in its group has no peers to compare with: its baseline is 0.

        Args:
            baseline_offset: (groups,) the baseline, relative to the group's first score.
        """
        alone = self.groups.spread(self.groups.sizes == 1)
        difference = self.offset - self.groups.spread(baseline_offset)
        return torch.where(alone, self.base, difference)

    def to_tokens(self, values: Tensor, mask: Tensor, lengths: Tensor, like: Tensor) -> Tensor:
        """Write each member's value on the trained tokens of its row: (members,) -> (tokens,)."""
        rows = values.new_zeros(lengths.numel())
        rows[self.groups.rows] = values
        return zero_outside(torch.repeat_interleave(rows, lengths), mask).to(like.dtype)


@torch.no_grad()
def grpo(
    token_rewards: Tensor,
    mask: Tensor,
    lengths: Tensor,
    groups: Tensor,
    *,
    normalize_by_std: bool = True,
) -> Advantages:
    """Group-relative advantage.

    DeepSeekMath (arXiv:2402.03300), section 4.1.2, outcome supervision:
    `A = (s - mean_g) / (std_g + 1e-6)` with the unbiased standard deviation, the same on every
    token of the row. Without the division it is Dr. GRPO (arXiv:2503.20783), section 3.2. A row
    alone in its group keeps its score (mean 0, deviation 1), as in verl.

    Departs from verl: a group of equal scores gives exactly 0; verl leaves rounding noise, which it
    divides by 1e-6. See also the module's notes.

    Args:
        token_rewards: (tokens,) r_t.
        mask: (tokens,) bool.
        lengths: (rows,) int64.
        groups: (rows,) int64, the prompt of each row.
        normalize_by_std: divide by the group's standard deviation.
    """
    scores = _Scores.of(token_rewards, mask, lengths, groups)
    members = scores.groups
    mean = members.mean(scores.offset)
    values = scores.minus(mean)
    if normalize_by_std:
        squares = members.sum((scores.offset - members.spread(mean)).square())
        std = (squares / (members.sizes - 1).clamp(min=1)).sqrt()
        alone = members.spread(members.sizes == 1)
        scaled = values / (members.spread(std) + STD_EPSILON)
        values = torch.where(alone, values / (1.0 + STD_EPSILON), scaled)
    result = scores.to_tokens(values, mask, lengths, token_rewards)
    return Advantages(result, result)


@torch.no_grad()
def rloo(token_rewards: Tensor, mask: Tensor, lengths: Tensor, groups: Tensor) -> Advantages:
    """Leave-one-out advantage: the score minus the mean of the other rows of the group.

    Back to Basics (arXiv:2402.14740), section 3.2, RLOO:
    `A_i = s_i - 1/(n-1) Σ_{j≠i} s_j = n/(n-1) (s_i - mean_g)`. A row alone in its group keeps its
    score, as verl's `rloo` does (its `rloo_vectorized` gives 0).

    Departs from verl: the module's notes only.

    Args:
        token_rewards: (tokens,) r_t.
        mask: (tokens,) bool.
        lengths: (rows,) int64.
        groups: (rows,) int64, the prompt of each row.
    """
    scores = _Scores.of(token_rewards, mask, lengths, groups)
    members = scores.groups
    others = (members.sizes - 1).clamp(min=1)
    factor = torch.where(members.sizes > 1, members.sizes / others, 1.0).to(torch.float64)
    values = scores.minus(members.mean(scores.offset)) * members.spread(factor)
    result = scores.to_tokens(values, mask, lengths, token_rewards)
    return Advantages(result, result)


@torch.no_grad()
def opo(token_rewards: Tensor, mask: Tensor, lengths: Tensor, groups: Tensor) -> Advantages:
    """Advantage over the baseline of least variance, where gradients grow with the length.

    On-Policy RL with Optimal reward baseline (arXiv:2505.23585), equation 9:
    `A_i = s_i - Σ_{j∈g} l_j s_j / Σ_{j∈g} l_j`, l_j the trained tokens of row j. A row alone in its
    group keeps its score, as in verl.

    Departs from verl: the module's notes only.

    Args:
        token_rewards: (tokens,) r_t.
        mask: (tokens,) bool.
        lengths: (rows,) int64.
        groups: (rows,) int64, the prompt of each row.
    """
    scores = _Scores.of(token_rewards, mask, lengths, groups)
    members = scores.groups
    baseline = members.sum(scores.tokens * scores.offset) / members.sum(scores.tokens)
    values = scores.minus(baseline)
    result = scores.to_tokens(values, mask, lengths, token_rewards)
    return Advantages(result, result)


@torch.no_grad()
def reinforce_plus_plus(
    token_rewards: Tensor,
    mask: Tensor,
    lengths: Tensor,
    groups: Tensor,
    *,
    gamma: float = 1.0,
) -> Advantages:
    """Discounted return of each token, whitened over the batch.

    REINFORCE++ (arXiv:2501.03262): `R_t = Σ_{k≥t} γ^{d(t,k)} r_k` over the trained tokens of the
    row, `A = whiten(R)`; d counts trained tokens, so tool output takes no time. Groups play no
    part.

    Departs from verl: a masked token in the middle of a row is skipped. verl takes the first 0 of
    the mask for the end of the text and cuts the sum there, so the tokens before a tool call never
    see the reward that follows it. See also the module's notes.

    Args:
        token_rewards: (tokens,) r_t.
        mask: (tokens,) bool.
        lengths: (rows,) int64.
        groups: (rows,) int64, not used; estimators share one signature.
        gamma: γ, the discount a token.
    """
    del groups
    rewards = token_rewards.to(torch.float64)[mask]
    trained = row_count(mask, lengths)
    returns = rewards.new_zeros(mask.shape)
    returns[mask] = _discounted_returns(rewards, trained, gamma)
    returns = returns.to(token_rewards.dtype)
    return Advantages(whiten(returns, mask), returns)


@torch.no_grad()
def reinforce_plus_plus_baseline(
    token_rewards: Tensor, mask: Tensor, lengths: Tensor, groups: Tensor
) -> Advantages:
    """Score minus the group's mean, whitened over the tokens of the batch.

    REINFORCE++ (arXiv:2501.03262), the variant with a group baseline: `A = whiten(s - mean_g)`. A
    row alone in its group keeps its score before whitening, as in verl. As in verl the returns are
    the advantages.

    Departs from verl: the module's notes only.

    Args:
        token_rewards: (tokens,) r_t.
        mask: (tokens,) bool.
        lengths: (rows,) int64.
        groups: (rows,) int64, the prompt of each row.
    """
    scores = _Scores.of(token_rewards, mask, lengths, groups)
    values = scores.minus(scores.groups.mean(scores.offset))
    flat = scores.to_tokens(values, mask, lengths, like=values)
    result = whiten(flat, mask).to(token_rewards.dtype)
    return Advantages(result, result)


def _discounted_returns(rewards: Tensor, lengths: Tensor, gamma: float) -> Tensor:
    """R_t = r_t + γ R_{t+1} within each row of a flat column without masked tokens."""
    returns = rewards.clone()
    ends = lengths.cumsum(0)
    # Step by step from the back, all rows at once: position -1 of every row, then -2, and so on.
    for back in range(1, int(lengths.max()) if lengths.numel() else 0):
        at = ends[lengths > back] - 1 - back
        returns[at] += gamma * returns[at + 1]
    return returns


ADVANTAGES: dict[str, Callable[..., Advantages]] = {
    "grpo": grpo,
    "rloo": rloo,
    "opo": opo,
    "reinforce_plus_plus": reinforce_plus_plus,
    "reinforce_plus_plus_baseline": reinforce_plus_plus_baseline,
}
"""Every estimator by the name of `spec.algorithm.type`."""
