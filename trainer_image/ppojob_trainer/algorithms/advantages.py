"""Advantage estimators without a critic, by group or batch baselines.

All take the rewards of a whole step (batch statistics need every row), are pure, keep no graph, and
share one signature in `ADVANTAGES`:

    estimator(token_rewards, mask, lengths, groups, *, own options) -> Advantages

Notation: r_t the reward of token t, m_t the mask, s = Σ_t m_t r_t the score of a row, g the group
of rows that answer one prompt, n the rows of a group. Rewards and mask are (tokens,), of `rows`
rows, flat and in row order (see `masked`); lengths and groups are (rows,) int64. Rows of a group
need not be neighbours.

Estimators that give every trained token of a row the same number are functions from the scores of
the rows to that number, (members,) float64; `_of_scores` makes estimators of them. Those of
`OF_SCORES` have one more argument, `kept`: (tokens,) bool, what of the mask the updates train on,
where a rollout correction rejects some. The scores are those of all trained tokens then, and
rejected rows stay in their groups; lengths, whitening and the result are of what is kept. So it is
in verl, whose other estimators see what is kept alone: they get it for the mask.

Arithmetic is done in float64 and given back in the dtype of the rewards. A group of equal scores
has advantage exactly 0 (see `GroupScores`), so a step can leave it out of the update.

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
    discounted_sum,
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
    """What an estimator gives back: (tokens,) A_t and R_t, both 0 at masked tokens.

    A_t is the weight of a token in the policy gradient, R_t what a critic would be fitted to.
    """

    advantages: Tensor
    returns: Tensor


@dataclass(frozen=True, slots=True)
class GroupScores:
    """Scores of the members: the rows that hold a trained token, sorted by group.

    They are kept as differences to the first score of their group: equal scores then differ from
    their mean by exactly 0 in any precision, where a mean of the scores is off by rounding.

    Attributes:
        rows: (members,) the rows, those of one group side by side, else in row order.
        sizes: (groups,) members of each group.
        of_member: (members,) the group of each member.
        base: (members,) float64, the first score of the member's group.
        offset: (members,) float64, score minus `base`; exactly 0 in a group of equal scores.
        counts: (members,) float64, tokens of the row that are updated on.
        kept: (tokens,) bool, those tokens.
        lengths: (rows,) int64.
    """

    rows: Tensor
    sizes: Tensor
    of_member: Tensor
    base: Tensor
    offset: Tensor
    counts: Tensor
    kept: Tensor
    lengths: Tensor

    @classmethod
    def of(
        cls,
        token_rewards: Tensor,
        mask: Tensor,
        lengths: Tensor,
        groups: Tensor,
        kept: Tensor | None = None,
    ) -> "GroupScores":
        """Add up the rewards of the trained tokens of each row, and sort the rows by group.

        A row of which no trained token is `kept` stays a member: its score is true.
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
        """The largest of a column of members within each group: (members,) -> (groups,)."""
        if values.numel() == 0:
            return values
        return torch.segment_reduce(values, "max", lengths=self.sizes)

    def to_members(self, values: Tensor) -> Tensor:
        """Give each member its group's value: (groups,) -> (members,)."""
        return values[self.of_member]

    @property
    def alone(self) -> Tensor:
        """(members,) bool: the row is the only member of its group."""
        return self.to_members(self.sizes == 1)

    def minus(self, baseline: Tensor) -> Tensor:
        """Score minus baseline of each member.

        A row alone in its group has no peers to compare with: its baseline is 0. The others' are
        (groups,), relative to the group's first score, as `offset` is.
        """
        return torch.where(self.alone, self.base, self.offset - self.to_members(baseline))

    def to_tokens(self, values: Tensor) -> Tensor:
        """Write each member's value on the tokens of its row that are updated on, 0 elsewhere."""
        rows = values.new_zeros(self.lengths.numel())
        rows[self.rows] = values
        return zero_outside(torch.repeat_interleave(rows, self.lengths), self.kept)


def grpo(scores: GroupScores, *, normalize_by_std: bool = True) -> Tensor:
    """Group-relative advantage.

    DeepSeekMath (arXiv:2402.03300), section 4.1.2, outcome supervision:
    `A = (s - mean_g) / (std_g + 1e-6)` with the unbiased standard deviation, the same on every
    token of the row. Without the division it is Dr. GRPO (arXiv:2503.20783), section 3.2. A row
    alone in its group keeps its score (mean 0, deviation 1), as in verl.

    Departs from verl: a group of equal scores gives exactly 0; verl leaves rounding noise, which it
    divides by 1e-6. See also the module's notes.
    """
    values = scores.minus(scores.mean(scores.offset))
    return values / scores.to_members(_divisor(scores)) if normalize_by_std else values


def grpo_passk(scores: GroupScores, *, normalize_by_std: bool = True) -> Tensor:
    """Only the best response of a group learns, by how far it is ahead of the second best.

    Pass@k training (arXiv:2503.19595), the leave-one-out form:
    `A = (s - second_g) / (std_g + 1e-6)` for the best row of a group, 0 for its others. Where two
    are best no row is ahead. A row alone in its group keeps its score, as in `grpo`; verl raises an
    error.

    Departs from verl: see `grpo`.
    """
    best = scores.to_members(scores.max(scores.offset))
    is_best = scores.offset == best
    others = torch.where(is_best, -torch.inf, scores.offset)
    # With two of them the second best is as good as the best.
    is_ahead = is_best & (scores.to_members(scores.sum(is_best.to(torch.float64))) == 1.0)
    ahead = torch.where(is_ahead, best - scores.to_members(scores.max(others)), 0.0)
    values = torch.where(scores.alone, scores.base, ahead)
    return values / scores.to_members(_divisor(scores)) if normalize_by_std else values


def rloo(scores: GroupScores) -> Tensor:
    """Leave-one-out advantage: the score minus the mean of the other rows of the group.

    Back to Basics (arXiv:2402.14740), RLOO:
    `A_i = s_i - 1/(n-1) Σ_{j≠i} s_j = n/(n-1) (s_i - mean_g)`. A row alone in its group keeps its
    score, as verl's `rloo` does (its `rloo_vectorized` gives 0).
    """
    sizes = scores.sizes.to(torch.float64)
    factor = torch.where(sizes > 1, sizes / (sizes - 1), 1.0)
    return scores.minus(scores.mean(scores.offset)) * scores.to_members(factor)


def opo(scores: GroupScores) -> Tensor:
    """Advantage over the baseline of least variance, where gradients grow with the length.

    On-Policy RL with Optimal reward baseline (arXiv:2505.23585), the length-weighted baseline:
    `A_i = s_i - Σ_{j∈g} l_j s_j / Σ_{j∈g} l_j`, l_j the trained tokens of row j. A row alone in its
    group keeps its score, as in verl.
    """
    return scores.minus(scores.sum(scores.counts * scores.offset) / scores.sum(scores.counts))


def gpg(scores: GroupScores) -> Tensor:
    """Score minus the group's mean, scaled up where many rows scored nothing.

    GPG (arXiv:2504.02546), its corrected advantage, with verl's count:
    `A = B / B_+ (s - mean_g)`, B the rows of the batch and B_+ those whose score is not 0, at least
    1. The paper takes the rows of groups with signal for B_+. A row alone in its group keeps its
    score before scaling, as in verl.
    """
    values = scores.minus(scores.mean(scores.offset))
    count = int((scores.base + scores.offset).count_nonzero())
    return values * (len(values) / max(1, count))


def maxrl(scores: GroupScores) -> Tensor:
    """How many times as good as the group's mean a response is, less 1.

    Maximum likelihood RL (arXiv:2602.02710), algorithm 1, with its code's epsilon:
    `A = (s - mean_g) / (mean_g + 1e-6)`, 0 where the mean is not above 0. With scores of 0 and 1
    its gradient is, up to a factor, that of `log P(right)` up to the n-th term of its series. A row
    alone in its group keeps its score; the code divides it by 1e-6.
    """
    mean = scores.mean(scores.offset)
    values = scores.minus(mean)
    means = scores.base + scores.to_members(mean)
    of_means = torch.where(means > 0, values / (means + STD_EPSILON), 0.0 * values)
    return torch.where(scores.alone, values, of_means)


def reinforce(scores: GroupScores) -> Tensor:
    """The score itself.

    REINFORCE (Williams 1992, doi:10.1007/BF00992696) without a baseline: what the estimators of
    groups make of a response without peers.
    """
    return scores.base + scores.offset


@torch.no_grad()
def remax(
    token_rewards: Tensor, mask: Tensor, lengths: Tensor, groups: Tensor, *, greedy_scores: Tensor
) -> Advantages:
    """Reward still to come, minus the score of the greedy response to the prompt.

    ReMax (arXiv:2310.10505), equation 5 and algorithm 1: `A_t = Σ_{k≥t} r_k - s_greedy` over the
    trained tokens of the row. The baseline is a number of the prompt alone, so it has no bias with
    a single response as well. `greedy_scores` (rows,) has s_greedy of the prompt of each row.
    """
    del groups
    returns = _returns(token_rewards, mask, lengths, 1.0)
    baselines = greedy_scores.to(torch.float64).repeat_interleave(lengths)
    dtype = token_rewards.dtype
    values = zero_outside(returns - baselines, mask)
    return Advantages(values.to(dtype), returns.to(dtype))


def spo(scores: GroupScores, *, baselines: Tensor) -> Tensor:
    """Score minus what the prompt scored before, over the deviation of the batch.

    Single-stream Policy Optimization (arXiv:2509.13232): `a = s - v`, v the value of
    the prompt that was known before the step, and `A = (a - mean) / (std + 1e-8)` over the rows of
    the batch, with the unbiased deviation, as in verl's recipe. `baselines` (rows,) has v of the
    prompt of each row.

    Departs from verl: a single row gives 0 and rows that are all as far ahead exactly 0; there the
    first is NaN, the second rounding over 1e-8.
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
    """Several rewards of a row, each compared within the group, added up and whitened.

    GDPO (arXiv:2601.05242), section 3.1, equations 4 to 6:
    `A = whiten(Σ_k w_k (s_k - mean_g s_k) / (std_g s_k + 1e-6))`. A reward of small numbers counts
    as much as one of large ones, where `grpo` of their sum lets the large one decide.

    Departs from verl: the module's notes, and those of `grpo`. A row alone in its group keeps its
    scores before whitening, as in verl.

    `rewards` (keys, rows) has s_k of each row, `weights` (keys,) w_k. Of `token_rewards` nothing
    but the dtype is read: a KL penalty plays no part.
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
    """Score minus the group's mean, to be whitened over the tokens of the batch.

    REINFORCE++ (arXiv:2501.03262), the variant with a group baseline: `A = whiten(s - mean_g)`. A
    row alone in its group keeps its score before whitening, as in verl. As in verl the returns are
    the advantages.
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

    REINFORCE++ (arXiv:2501.03262): `R_t = Σ_{k≥t} γ^{d(t,k)} r_k` over the trained tokens of the
    row, `A = whiten(R)`; d counts trained tokens, so tool output takes no time. Groups play no
    part.

    Departs from verl: the module's notes only; a masked token in the middle of a row is skipped
    there as it is here.
    """
    del groups
    returns = _returns(token_rewards, mask, lengths, gamma)
    dtype = token_rewards.dtype
    return Advantages(whiten(returns, mask).to(dtype), returns.to(dtype))


def _returns(token_rewards: Tensor, mask: Tensor, lengths: Tensor, gamma: float) -> Tensor:
    """(tokens,) float64: what each token and the trained ones behind it earn, γ less a token."""
    rewards = token_rewards.to(torch.float64)[mask]
    returns = rewards.new_zeros(mask.shape)
    returns[mask] = discounted_sum(rewards, row_count(mask, lengths), gamma)
    return returns


def _divisor(scores: GroupScores) -> Tensor:
    """(groups,) the unbiased standard deviation and 1e-6; 1 and 1e-6 for a row alone."""
    mean = scores.to_members(scores.mean(scores.offset))
    squares = scores.sum((scores.offset - mean).square())
    std = (squares / (scores.sizes - 1).clamp(min=1)).sqrt()
    return torch.where(scores.sizes == 1, 1.0, std) + STD_EPSILON


def online_dpo(scores: GroupScores) -> Tensor:
    """1 for the response that is chosen, -1 for the one that is rejected, 0 for the others.

    Online DPO (Guo et al. 2024, arXiv:2402.04792): the best response of each prompt is chosen and
    the worst rejected, the first of equal ones. Responses that are all equal, as float32 has them,
    make no pair.
    """
    signs, first = torch.zeros_like(scores.offset), 0
    # Sums of the rewards of turns differ in digits that the rewards do not have.
    totals = (scores.base + scores.offset).float()
    for own in torch.split(totals, scores.sizes.tolist()):
        if own.max() > own.min():
            signs[first + own.argmax()] = 1.0
            signs[first + own.argmin()] = -1.0
        first += len(own)
    return signs + 0.0 * scores.offset  # a score that is no number stays one


def _of_scores(
    values: Callable[..., Tensor], *, whitened: bool = False
) -> Callable[..., Advantages]:
    """Make an estimator of a function from scores to one number a row."""

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
"""Every estimator without a critic by the name of `spec.algorithm.type`; `gae` has the others."""

OF_SCORES = frozenset(ADVANTAGES) - {"remax", "reinforce_plus_plus"}
"""Those that compare whole responses; they take `kept`."""
