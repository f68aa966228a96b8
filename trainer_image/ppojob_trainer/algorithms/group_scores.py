"""The scores of rows, seen from the group of rows that answer the same prompt.

Every group estimator compares a row with its peers. What they share is here: who is a member, what
the scores are, and how a value of each row gets back onto its tokens.

Scores are kept as differences to the first score of their group: equal scores then differ from
their mean by exactly 0 in any precision, where a mean of the scores themselves is off by rounding.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ppojob_trainer.algorithms.masked import row_count, row_sum, segment_sum, zero_outside


@dataclass(frozen=True, slots=True)
class Members:
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
    def of(cls, groups: Tensor, counts: Tensor) -> "Members":
        """Sort the rows by the number of their group; those with a count of 0 are no members."""
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

    def max(self, values: Tensor) -> Tensor:
        """The largest of a column of members within each group: (members,) -> (groups,)."""
        if values.numel() == 0:
            return values
        return torch.segment_reduce(values, "max", lengths=self.sizes)

    def spread(self, values: Tensor) -> Tensor:
        """Give each member its group's value: (groups,) -> (members,)."""
        return values[self.of_member]


@dataclass(frozen=True, slots=True)
class GroupScores:
    """Scores of the rows, relative to the first score of their group.

    Attributes:
        groups: who belongs together.
        base: (members,) float64, the first score of the member's group.
        offset: (members,) float64, score minus `base`; exactly 0 in a group of equal scores.
        counts: (members,) float64, tokens of the row that are updated on.
        kept: (tokens,) bool, those tokens.
        lengths: (rows,) int64.
    """

    groups: Members
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
        """Add up the rewards of the trained tokens of each row, and compare within groups.

        A row of whose mask nothing is `kept` is compared with all the same: its score is true.
        """
        kept = mask if kept is None else kept
        counts = row_count(kept, lengths)
        members = Members.of(groups, row_count(mask, lengths))
        scores = row_sum(token_rewards.to(torch.float64), mask, lengths)[members.rows]
        base = members.spread(scores[members.first])
        counted = counts[members.rows].to(torch.float64)
        return cls(members, base, scores - base, counted, kept, lengths)

    @property
    def alone(self) -> Tensor:
        """(members,) bool: the row is the only member of its group."""
        return self.groups.spread(self.groups.sizes == 1)

    def minus(self, baseline: Tensor) -> Tensor:
        """Score minus baseline of each member.

        A row alone in its group has no peers to compare with: its baseline is 0. The others' are
        (groups,), relative to the group's first score, as `offset` is.
        """
        return torch.where(self.alone, self.base, self.offset - self.groups.spread(baseline))

    def to_tokens(self, values: Tensor) -> Tensor:
        """Write each member's value on the tokens of its row that are updated on, 0 elsewhere."""
        rows = values.new_zeros(self.lengths.numel())
        rows[self.groups.rows] = values
        return zero_outside(torch.repeat_interleave(rows, self.lengths), self.kept)
