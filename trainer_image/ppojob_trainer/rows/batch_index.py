"""The index of a batch: sizes and owners of its rows, known to everybody, with no token in it.

The controller sends it with the requests of a step. All that is planned (who computes what, which
rows move where, how many bytes that is) follows from it by pure functions, so every rank comes to
the same plan without asking anybody.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class BatchIndex(msgspec.Struct, frozen=True):
    """Sizes and owners of the rows of a batch.

    The *batch position* of a group is its index among the prompts of the step. Rows are
    group-major: row `p * samples + s` is sample `s` of the group at position `p`.
    """

    prompt_lengths: tuple[int, ...]  # (groups,) tokens of each prompt
    lengths: tuple[int, ...]  # (rows,) tokens of each response
    samples: int  # rows a group
    owners: tuple[int, ...]  # (groups,) the rank that holds each group, prompt and rows together
    # (groups,) bytes of the pictures of each prompt; empty where none has any
    picture_bytes: tuple[int, ...] = ()
    # (rows,) bytes of those that each row was shown behind it; empty likewise
    later_picture_bytes: tuple[int, ...] = ()
    # (groups,) number of the reference's model that reads each; empty where it has one for all
    teachers: tuple[int, ...] = ()
    # (rows,) tokens of what the reference reads in the place of each row's prompt; empty where it
    # reads the prompts
    teacher_prompt_lengths: tuple[int, ...] = ()

    @property
    def num_groups(self) -> int:
        """Number of prompts."""
        return len(self.prompt_lengths)

    def group_lengths(self, position: int) -> tuple[int, ...]:
        """(samples,) tokens of each response of a group."""
        return self.lengths[position * self.samples : (position + 1) * self.samples]

    @property
    def later_bytes(self) -> tuple[int, ...]:
        """(groups,) bytes of the pictures that all rows of each were shown behind the prompt."""
        return self._of_groups(self.later_picture_bytes)

    @property
    def teacher_prompt_tokens(self) -> tuple[int, ...]:
        """(groups,) tokens of what the reference reads in the place of the prompts of its rows."""
        return self._of_groups(self.teacher_prompt_lengths)

    @property
    def response_tokens(self) -> tuple[int, ...]:
        """(groups,) tokens of all responses of each group: its share of a per-token column."""
        return tuple(sum(self.group_lengths(position)) for position in range(self.num_groups))

    @property
    def total_tokens(self) -> tuple[int, ...]:
        """(groups,) prompt and response tokens; the prompt counts once a row, as in verl."""
        prompts = (length * self.samples for length in self.prompt_lengths)
        return tuple(map(sum, zip(prompts, self.response_tokens, strict=True)))

    def tokens_by_part(self, parts_of_groups: Sequence[int], parts: int) -> list[int]:
        """(parts,) `total_tokens` of the groups of each part."""
        sums = [0] * parts
        for part, tokens in zip(parts_of_groups, self.total_tokens, strict=True):
            sums[part] += tokens
        return sums

    def owned_by(self, rank: int) -> tuple[int, ...]:
        """Batch positions of the groups of a rank, in batch order."""
        return tuple(p for p, owner in enumerate(self.owners) if owner == rank)

    def parts_for(self, places: int) -> int:
        """Into how many equal parts groups are cut, so that there is one for each place.

        1 where there are as many groups. Else the smallest divisor of their rows that is enough;
        where none is, every row is a part.
        """
        divisors = (n for n in range(1, self.samples + 1) if self.samples % n == 0)
        return next((n for n in divisors if n * self.num_groups >= places), self.samples)

    def cut(self, parts: int) -> BatchIndex:
        """The index of the same rows in the same order, each group as so many, of equal rows."""
        return BatchIndex(
            prompt_lengths=_each(self.prompt_lengths, parts),
            lengths=self.lengths,
            samples=self.samples // parts,
            owners=_each(self.owners, parts),
            picture_bytes=_each(self.picture_bytes, parts),
            later_picture_bytes=self.later_picture_bytes,
            teachers=_each(self.teachers, parts),
            teacher_prompt_lengths=self.teacher_prompt_lengths,
        )

    def select(self, positions: Sequence[int]) -> BatchIndex:
        """The index of some groups, in the given order, as a batch of their own."""
        return BatchIndex(
            prompt_lengths=tuple(self.prompt_lengths[p] for p in positions),
            lengths=tuple(n for p in positions for n in self.group_lengths(p)),
            samples=self.samples,
            owners=tuple(self.owners[p] for p in positions),
            picture_bytes=tuple(self.picture_bytes[p] for p in positions if self.picture_bytes),
            later_picture_bytes=self._of_rows(self.later_picture_bytes, positions),
            teachers=tuple(self.teachers[p] for p in positions if self.teachers),
            teacher_prompt_lengths=self._of_rows(self.teacher_prompt_lengths, positions),
        )

    def _of_rows(self, values: tuple[int, ...], positions: Sequence[int]) -> tuple[int, ...]:
        """Those of the rows of some groups, of values of all rows or none."""
        return tuple(
            v for p in positions for v in values[p * self.samples : (p + 1) * self.samples]
        )

    def _of_groups(self, values: tuple[int, ...]) -> tuple[int, ...]:
        """(groups,) sums of values of all rows; 0 of none."""
        return tuple(sum(self._of_rows(values, (p,))) for p in range(self.num_groups))


def _each(values: tuple[int, ...], times: int) -> tuple[int, ...]:
    return tuple(value for value in values for _ in range(times))
