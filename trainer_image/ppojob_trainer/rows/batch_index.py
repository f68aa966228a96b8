"""Batch index: sizes and owners of a batch's rows, known to all ranks, without tokens.

The controller sends it with the requests of a step. All plans (which rank computes what, which rows
move where, how many bytes) follow from it by pure functions, so every rank computes the same plan
without communication.
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
    # (groups,) bytes of the images of each prompt; empty if no prompt has any
    image_bytes: tuple[int, ...] = ()
    # (rows,) bytes of the images after the prompt; empty likewise
    later_image_bytes: tuple[int, ...] = ()
    # (groups,) number of the reference model of each; empty if there is one for all
    teachers: tuple[int, ...] = ()
    # (rows,) tokens of the reference's prompt of each row; empty if it reads the prompts
    teacher_prompt_lengths: tuple[int, ...] = ()

    @property
    def num_groups(self) -> int:
        return len(self.prompt_lengths)

    def group_lengths(self, position: int) -> tuple[int, ...]:
        """Return (samples,) tokens of each response of a group."""
        return self.lengths[position * self.samples : (position + 1) * self.samples]

    @property
    def later_bytes(self) -> tuple[int, ...]:
        """Return (groups,) bytes of the images after the prompt, over all rows of each."""
        return self._of_groups(self.later_image_bytes)

    @property
    def teacher_prompt_tokens(self) -> tuple[int, ...]:
        """Return (groups,) tokens that the reference reads in place of its rows' prompts."""
        return self._of_groups(self.teacher_prompt_lengths)

    @property
    def response_tokens(self) -> tuple[int, ...]:
        """Return (groups,) response tokens of each group: its share of a per-token column."""
        return tuple(sum(self.group_lengths(position)) for position in range(self.num_groups))

    @property
    def total_tokens(self) -> tuple[int, ...]:
        """Return (groups,) prompt and response tokens; a prompt counts once per row, as in verl."""
        prompts = (length * self.samples for length in self.prompt_lengths)
        return tuple(map(sum, zip(prompts, self.response_tokens, strict=True)))

    def tokens_by_part(self, parts_of_groups: Sequence[int], parts: int) -> list[int]:
        """Return (parts,) `total_tokens` of the groups of each part."""
        sums = [0] * parts
        for part, tokens in zip(parts_of_groups, self.total_tokens, strict=True):
            sums[part] += tokens
        return sums

    def owned_by(self, rank: int) -> tuple[int, ...]:
        """Return the batch positions of a rank's groups, in batch order."""
        return tuple(p for p, owner in enumerate(self.owners) if owner == rank)

    def parts_for(self, places: int) -> int:
        """Return the number of equal parts per group that gives each place at least one part.

        It is the smallest sufficient divisor of the rows of a group, else their number.
        """
        divisors = (n for n in range(1, self.samples + 1) if self.samples % n == 0)
        return next((n for n in divisors if n * self.num_groups >= places), self.samples)

    def cut(self, parts: int) -> BatchIndex:
        """Return the index of the same rows, in order, with groups split into equal parts."""
        return BatchIndex(
            prompt_lengths=_each(self.prompt_lengths, parts),
            lengths=self.lengths,
            samples=self.samples // parts,
            owners=_each(self.owners, parts),
            image_bytes=_each(self.image_bytes, parts),
            later_image_bytes=self.later_image_bytes,
            teachers=_each(self.teachers, parts),
            teacher_prompt_lengths=self.teacher_prompt_lengths,
        )

    def select(self, positions: Sequence[int]) -> BatchIndex:
        """Return the index of some groups, in the given order, as a separate batch."""
        return BatchIndex(
            prompt_lengths=tuple(self.prompt_lengths[p] for p in positions),
            lengths=tuple(n for p in positions for n in self.group_lengths(p)),
            samples=self.samples,
            owners=tuple(self.owners[p] for p in positions),
            image_bytes=tuple(self.image_bytes[p] for p in positions if self.image_bytes),
            later_image_bytes=self._of_rows(self.later_image_bytes, positions),
            teachers=tuple(self.teachers[p] for p in positions if self.teachers),
            teacher_prompt_lengths=self._of_rows(self.teacher_prompt_lengths, positions),
        )

    def _of_rows(self, values: tuple[int, ...], positions: Sequence[int]) -> tuple[int, ...]:
        """Return the values of some groups' rows, from those of all rows or none."""
        return tuple(
            v for p in positions for v in values[p * self.samples : (p + 1) * self.samples]
        )

    def _of_groups(self, values: tuple[int, ...]) -> tuple[int, ...]:
        """Return (groups,) sums of values of all rows; 0 for none."""
        return tuple(sum(self._of_rows(values, (p,))) for p in range(self.num_groups))


def _each(values: tuple[int, ...], times: int) -> tuple[int, ...]:
    return tuple(value for value in values for _ in range(times))
