"""Advantage estimators without a critic, with group or batch baselines.

All are pure functions of the rewards of a whole step, with one signature in `ADVANTAGES`:

    estimator(token_rewards, mask, lengths, groups, *, own options) -> Advantages

Notation: r_t the reward of token t, m_t the mask, s = Σ_t m_t r_t the score of a row, g the group
of rows of one prompt, n the rows of a group. Rewards and mask are flat (tokens,), in row order (see
`masked`); lengths and groups are (rows,) int64. Rows of a group need not be adjacent.

Estimators that give all trained tokens of a row the same number are functions from the scores to
that number, (members,) float64, which `_of_scores` turns into estimators. Those of `OF_SCORES` have
one more argument, `kept` (tokens,) bool: the tokens of the mask that the update trains on, without
those that a rollout correction rejects. Scores are sums over the mask, and rejected rows stay in
their groups; lengths, whitening and the result use `kept`. verl does the same; its other estimators
use only the kept tokens, so they get `kept` as their mask here.

Arithmetic is in float64, results are in the dtype of the rewards. A group of equal scores has an
advantage of exactly 0 (see `GroupScores`), so that an update can skip it.

Departs from verl, in every estimator:
    - Masked tokens (tool output) give no reward and get none; verl adds their rewards to the score.
    - A row without a trained token is not in its group: its advantage is 0, and it changes no
      baseline. verl includes it in the baseline.
    - The result is 0 at masked tokens, returns included.
    On rows whose only masked tokens are padding the numbers are verl's.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ppojob_trainer.algorithms.masked import (
    returns_to_go,
    row_count,
    row_ends,
    row_sum,
    segment_sum,
    whiten,
    zero_outside,
)

STD_EPSILON = 1e-6
"""Added to a group's standard deviation by `grpo`, as verl does, and to its mean by `maxrl`."""

BATCH_EPSILON = 1e-8
"""Added to the deviation of a batch by `spo`, as verl's recipe does."""


@dataclass(frozen=True, slots=True)
class Advantages:
    """Result of an estimator, 0 at masked tokens."""

    advantages: Tensor  # (tokens,) A_t, the weight of a token in the policy gradient
    returns: Tensor  # (tokens,) R_t, the target of a critic


@dataclass(frozen=True, slots=True)
class GroupScores:
    """Scores of the members: the rows that have a trained token, sorted by group.

    They are stored as differences to the first score of their group: equal scores then differ from
    their mean by exactly 0 in any precision.
    """

    rows: Tensor  # (members,) row indices, group by group, else in row order
    sizes: Tensor  # (groups,) members of each group
    of_member: Tensor  # (members,) group of each member
    base: Tensor  # (members,) float64, the first score of the member's group
    offset: Tensor  # (members,) float64, score minus `base`
    counts: Tensor  # (members,) float64, tokens of the row that are updated on
    kept: Tensor  # (tokens,) bool, those tokens
    lengths: Tensor  # (rows,) int64

    @classmethod
    def of(
        cls,
        token_rewards: Tensor,
        mask: Tensor,
        lengths: Tensor,
        groups: Tensor,
        kept: Tensor | None = None,
    ) -> "GroupScores":
        """Sum the rewards of the trained tokens of each row, and sort the rows by group.

        A row with trained tokens, but none `kept`, is still a member.
        """
        kept = mask if kept is None else kept
        counts = row_count(kept, lengths)
        members = torch.nonzero(row_count(mask, lengths) > 0).flatten()
        rows = members[torch.argsort(groups[members], stable=True)]
        _, of_member, sizes = torch.unique_consecutive(
            groups[rows], return_inverse=True, return_counts=True
        )
        scores = row_sum(token_rewards.to(torch.float64), mask, lengths)[rows]
        base = scores[sizes.cumsum(0) - sizes][of_member]
        counted = counts[rows].to(torch.float64)
        return cls(rows, sizes, of_member, base, scores - base, counted, kept, lengths)

    def sum(self, values: Tensor) -> Tensor:
        """Sum a column of members within each group: (members,) -> (groups,)."""
        return segment_sum(values, self.sizes)

    def mean(self, values: Tensor) -> Tensor:
        """Average a column of members within each group: (members,) -> (groups,)."""
        return self.sum(values) / self.sizes

    def max(self, values: Tensor) -> Tensor:
        """Return the maximum of a column within each group: (members,) -> (groups,)."""
        return (
            values if not len(values) else torch.segment_reduce(values, "max", lengths=self.sizes)
        )

    def to_members(self, values: Tensor) -> Tensor:
        """Expand group values to members: (groups,) -> (members,)."""
        return values[self.of_member]

    @property
    def alone(self) -> Tensor:
        """(members,) bool, True for the only member of a group."""
        return self.to_members(self.sizes == 1)

    def minus(self, baseline: Tensor) -> Tensor:
        """Subtract a baseline (groups,) from the scores; the baseline is relative, as `offset` is.

        The baseline of a row alone in its group is 0.
        """
        return torch.where(self.alone, self.base, self.offset - self.to_members(baseline))

    def to_tokens(self, values: Tensor) -> Tensor:
        """Expand member values to the tokens that are updated on, 0 elsewhere."""
        rows = values.new_zeros(self.lengths.numel())
        rows[self.rows] = values
        return zero_outside(torch.repeat_interleave(rows, self.lengths), self.kept)


def grpo(scores: GroupScores, *, normalize_by_std: bool = True) -> Tensor:
    """Group-relative advantage.

    DeepSeekMath (arXiv:2402.03300), section 4.1.2, outcome supervision: `A = (s - mean_g) / (std_g
    + 1e-6)` with the unbiased standard deviation. Without the division it is Dr. GRPO
    (arXiv:2503.20783), section 3.2. A row alone in its group keeps its score (mean 0, deviation 1),
    as in verl.

    Departs from verl: a group of equal scores gives exactly 0, where verl divides rounding noise by
    1e-6.
    """
    values = scores.minus(scores.mean(scores.offset))
    return values / scores.to_members(_divisor(scores)) if normalize_by_std else values


def grpo_passk(scores: GroupScores, *, normalize_by_std: bool = True) -> Tensor:
    """Advantage of the best response of a group over the second best; 0 for the others.

    Pass@k training (arXiv:2503.19595), the leave-one-out form: `A = (s - second_g) / (std_g +
    1e-6)`. If several are best, all have 0. A row alone in its group keeps its score, as in `grpo`,
    where verl raises an error.
    """
    best = scores.to_members(scores.max(scores.offset))
    is_best = scores.offset == best
    others = torch.where(is_best, -torch.inf, scores.offset)
    is_ahead = is_best & (scores.to_members(scores.sum(is_best.to(torch.float64))) == 1.0)
    ahead = torch.where(is_ahead, best - scores.to_members(scores.max(others)), 0.0)
    values = torch.where(scores.alone, scores.base, ahead)
    return values / scores.to_members(_divisor(scores)) if normalize_by_std else values


def rloo(scores: GroupScores) -> Tensor:
    """Leave-one-out advantage: the score minus the mean of the other rows of the group.

    Back to Basics (arXiv:2402.14740), RLOO: `A_i = s_i - 1/(n-1) Σ_{j≠i} s_j = n/(n-1) (s_i -
    mean_g)`. A row alone in its group keeps its score, as in verl's `rloo` (its `rloo_vectorized`
    gives 0).
    """
    sizes = scores.sizes.to(torch.float64)
    factor = torch.where(sizes > 1, sizes / (sizes - 1), 1.0)
    return scores.minus(scores.mean(scores.offset)) * scores.to_members(factor)


def opo(scores: GroupScores) -> Tensor:
    """Score minus the length-weighted mean, the baseline of least variance.

    On-Policy RL with Optimal reward baseline (arXiv:2505.23585): `A_i = s_i - Σ_{j∈g} l_j s_j /
    Σ_{j∈g} l_j`, l_j the trained tokens of row j. A row alone in its group keeps its score, as in
    verl.
    """
    return scores.minus(scores.sum(scores.counts * scores.offset) / scores.sum(scores.counts))


def gpg(scores: GroupScores) -> Tensor:
    """Score minus the group's mean, scaled up by the share of zero scores.

    GPG (arXiv:2504.02546), its corrected advantage, with verl's count: `A = B / B_+ (s - mean_g)`,
    B the rows of the batch and B_+ those with a nonzero score, at least 1. In the paper B_+ are the
    rows of groups with a signal. A row alone in its group keeps its score before scaling, as in
    verl.
    """
    values = scores.minus(scores.mean(scores.offset))
    count = int((scores.base + scores.offset).count_nonzero())
    return values * (len(values) / max(1, count))


def maxrl(scores: GroupScores) -> Tensor:
    """Score minus the group's mean, divided by the mean.

    Maximum likelihood RL (arXiv:2602.02710), algorithm 1, with its code's epsilon: `A = (s -
    mean_g) / (mean_g + 1e-6)`, 0 where the mean is not above 0. With scores of 0 and 1 its gradient
    is, up to a factor, that of the first n terms of the series of `log P(right)`. A row alone in
    its group keeps its score; the code divides it by 1e-6.
    """
    mean = scores.mean(scores.offset)
    values = scores.minus(mean)
    means = scores.base + scores.to_members(mean)
    of_means = torch.where(means > 0, values / (means + STD_EPSILON), 0.0 * values)
    return torch.where(scores.alone, values, of_means)


def reinforce(scores: GroupScores) -> Tensor:
    """The score itself: REINFORCE without a baseline (Williams 1992, doi:10.1007/BF00992696)."""
    return scores.base + scores.offset


@torch.no_grad()
def remax(
    token_rewards: Tensor, mask: Tensor, lengths: Tensor, groups: Tensor, *, greedy_scores: Tensor
) -> Advantages:
    """Return to go, minus the score of the greedy response to the prompt.

    ReMax (arXiv:2310.10505), equation 5 and algorithm 1: `A_t = Σ_{k≥t} r_k - s_greedy` over the
    trained tokens of the row. `greedy_scores` (rows,) has s_greedy of the prompt of each row.
    """
    del groups
    returns = returns_to_go(token_rewards, mask, lengths)
    baselines = greedy_scores.to(torch.float64).repeat_interleave(lengths)
    dtype = token_rewards.dtype
    values = zero_outside(returns - baselines, mask)
    return Advantages(values.to(dtype), returns.to(dtype))


def spo(scores: GroupScores, *, baselines: Tensor) -> Tensor:
    """Score minus the tracked value of the prompt, normalized over the batch.

    Single-stream Policy Optimization (arXiv:2509.13232): `a = s - v`, `A = (a - mean) / (std +
    1e-8)` over the rows of the batch, with the unbiased deviation, as in verl's recipe. `baselines`
    (rows,) has v, the value of each row's prompt before the step.

    Departs from verl: a single row gives 0, where verl gives NaN, and equal a give exactly 0.
    """
    ahead = scores.base + scores.offset - baselines.to(torch.float64)[scores.rows]
    if len(ahead) < 2:
        return 0.0 * ahead
    offset = ahead - ahead[0]
    return (offset - offset.mean()) / (offset.std() + BATCH_EPSILON)


@torch.no_grad()
def gdpo(
    token_rewards: Tensor,
    mask: Tensor,
    lengths: Tensor,
    groups: Tensor,
    *,
    rewards: Tensor,
    weights: Tensor,
    normalize_by_std: bool = True,
    kept: Tensor | None = None,
) -> Advantages:
    """Weighted sum of the group-relative advantages of several rewards, whitened.

    GDPO (arXiv:2601.05242), section 3.1, equations 4 to 6: `A = whiten(Σ_k w_k (s_k - mean_g s_k) /
    (std_g s_k + 1e-6))`. A row alone in its group keeps its scores before whitening, as in verl.

    `rewards` (keys, rows) has s_k of each row, `weights` (keys,) w_k. Only the dtype of
    `token_rewards` is read, so a KL penalty in the reward has no effect.
    """
    kept = mask if kept is None else kept
    has_some, ends = row_count(mask, lengths).bool(), row_ends(mask, lengths)
    total = torch.zeros(mask.shape, dtype=torch.float64)
    for key, weight in zip(rewards.to(torch.float64), weights.to(torch.float64), strict=True):
        placed = torch.zeros_like(total)
        placed[ends] = key[has_some]
        scores = GroupScores.of(placed, mask, lengths, groups, kept)
        total += weight * scores.to_tokens(grpo(scores, normalize_by_std=normalize_by_std))
    result = whiten(total, kept).to(token_rewards.dtype)
    return Advantages(result, result)


def reinforce_plus_plus_baseline(scores: GroupScores) -> Tensor:
    """Score minus the group's mean; whitened over the tokens of the batch in `ADVANTAGES`.

    REINFORCE++ (arXiv:2501.03262), the variant with a group baseline: `A = whiten(s - mean_g)`. A
    row alone in its group keeps its score before whitening, and the returns are the advantages, as
    in verl.
    """
    return scores.minus(scores.mean(scores.offset))


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

    REINFORCE++ (arXiv:2501.03262): `R_t = Σ_{k≥t} γ^{d(t,k)} r_k`, `A = whiten(R)`; d counts
    trained tokens, as in verl. Groups are not used.
    """
    del groups
    returns = returns_to_go(token_rewards, mask, lengths, gamma)
    dtype = token_rewards.dtype
    return Advantages(whiten(returns, mask).to(dtype), returns.to(dtype))


def _divisor(scores: GroupScores) -> Tensor:
    """Return (groups,) the unbiased standard deviation, 1 for a row alone, plus 1e-6."""
    mean = scores.to_members(scores.mean(scores.offset))
    squares = scores.sum((scores.offset - mean).square())
    std = (squares / (scores.sizes - 1).clamp(min=1)).sqrt()
    return torch.where(scores.sizes == 1, 1.0, std) + STD_EPSILON


def online_dpo(scores: GroupScores) -> Tensor:
    """1 for the best response of a group, -1 for the worst, 0 for the others.

    Online DPO (Guo et al. 2024, arXiv:2402.04792). Of equal responses the first is taken. If all
    are equal in float32, there is no pair.
    """
    signs, first = torch.zeros_like(scores.offset), 0
    # In float32, since float64 sums of turn rewards differ by rounding.
    totals = (scores.base + scores.offset).float()
    for own in torch.split(totals, scores.sizes.tolist()):
        if own.max() > own.min():
            signs[first + own.argmax()] = 1.0
            signs[first + own.argmin()] = -1.0
        first += len(own)
    return signs + 0.0 * scores.offset  # NaN scores stay NaN


def _of_scores(
    values: Callable[..., Tensor], *, whitened: bool = False
) -> Callable[..., Advantages]:
    """Make an estimator of a function from scores to one number per row."""

    @torch.no_grad()
    def estimate(
        token_rewards: Tensor,
        mask: Tensor,
        lengths: Tensor,
        groups: Tensor,
        *,
        kept: Tensor | None = None,
        **options: object,
    ) -> Advantages:
        scores = GroupScores.of(token_rewards, mask, lengths, groups, kept)
        tokens = scores.to_tokens(values(scores, **options))
        result = (whiten(tokens, scores.kept) if whitened else tokens).to(token_rewards.dtype)
        return Advantages(result, result)

    return estimate


ADVANTAGES: dict[str, Callable[..., Advantages]] = {
    "grpo": _of_scores(grpo),
    "grpo_passk": _of_scores(grpo_passk),
    "rloo": _of_scores(rloo),
    "opo": _of_scores(opo),
    "gpg": _of_scores(gpg),
    "maxrl": _of_scores(maxrl),
    "reinforce": _of_scores(reinforce),
    "remax": remax,
    "spo": _of_scores(spo),
    "gdpo": gdpo,
    "online_dpo": _of_scores(online_dpo),
    "reinforce_plus_plus": reinforce_plus_plus,
    "reinforce_plus_plus_baseline": _of_scores(reinforce_plus_plus_baseline, whitened=True),
}
"""Estimators without a critic, by `spec.algorithm.type`."""

OF_SCORES = frozenset(ADVANTAGES) - {"remax", "reinforce_plus_plus"}
"""Estimators that take `kept`."""
