"""Experience: the rows of one step in flat columns, and selections of rows.

A *row* is one response to one prompt; the rows of one prompt are its *group*. Per-token columns
hold the tokens of all responses concatenated in row order, with no padding: token `t` of row `i` is
at `offsets[i] + t`. Prompts are stored once per group, however many responses they have. Everything
is in host memory; a forward pass moves what it needs.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ppojob_trainer.data.media.images import LaterImage, unpacked_later


@dataclass(slots=True)
class Experience:
    """The rows of a step; stages fill in the optional columns.

    Shapes: `rows` responses of `tokens` tokens in all, answering `groups` prompts.
    """

    # token ids of each group's prompt, `groups` tensors (prompt_tokens,) int64
    prompts: list[Tensor]
    row_groups: Tensor  # (rows,) int64, the index into `prompts` of each row
    response_tokens: Tensor  # (tokens,) int64, sampled ids, the end token included
    lengths: Tensor  # (rows,) int64, tokens of each response
    # (tokens,) bool, True where the token is trained: the policy wrote it. Log-probabilities and
    # values of other tokens are 0.
    mask: Tensor
    rollout_logprobs: Tensor  # (tokens,) float32, log mu(a_t|s_t) as the sampler reported it
    # (tokens,) bool, True where a new context of the row begins, without its prompt and earlier
    # tokens. Empty for no such tokens.
    context_starts: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.bool))
    # (tokens,) bool, True for trained tokens that the policy did not write; their
    # rollout_logprobs are 0. None without such tokens.
    given: Tensor | None = None
    # (tokens,) float32, log pi_old(a_t|s_t) of the trainer before the update
    old_logprobs: Tensor | None = None
    ref_logprobs: Tensor | None = None  # (tokens,) float32, log pi_ref(a_t|s_t)
    # (tokens,) float32, of the policy before the update; None if unused
    entropies: Tensor | None = None
    # (tokens,) float32, squared probabilities of the policy before the update, summed over the
    # vocabulary; None if unused
    sum_pi_squared: Tensor | None = None
    # (tokens,) float32, KL of the uniform distribution to the policy before the update; None if
    # unused
    certainties: Tensor | None = None
    # (tokens,) float32, at every token the row's reward for the probability of the known answer;
    # None if unused
    answer_probabilities: Tensor | None = None
    # (tokens,) float32, factors of the policy loss; None for 1
    loss_weights: Tensor | None = None
    values: Tensor | None = None  # (tokens,) float32, V(s_t) of the critic before the update
    # (tokens,) float32, of a process reward model: log-probabilities of its reference, and its
    # rewards
    critic_ref_logprobs: Tensor | None = None
    process_rewards: Tensor | None = None
    # (tokens,) float32, at every token the target of such a model for the row; NaN for none
    outcomes: Tensor | None = None
    # (tokens,) float32, rewards of turns; None if rows have only one. For labelled answers: 1 for
    # good, -1 for bad, 0 for the answer to another prompt.
    turn_rewards: Tensor | None = None
    token_rewards: Tensor | None = None  # (tokens,) float32, r_t, penalties included
    advantages: Tensor | None = None  # (tokens,) float32, A_t
    returns: Tensor | None = None  # (tokens,) float32, R_t
    # (tokens,) float32, at every token the log-ratio of equal rank, with which that of its row is
    # compared; None where rows are compared with the other answer of their pair
    counterparts: Tensor | None = None
    # (tokens,) bool, tokens of the mask that the updates train on; None for all of them
    update_mask: Tensor | None = None
    # (tokens,) bool, at every token whether its row scored well; None if unused
    positives: Tensor | None = None
    # (tokens, layers, k) int16, replayed experts of each input token of every layer; None if the
    # routers choose
    experts: Tensor | None = None
    # (tokens of all prompts, layers, k) int16, the same for the prompts, concatenated
    prompt_experts: Tensor | None = None
    # (tokens,) int64, how often the updates train on the row; None for once
    copies: Tensor | None = None
    # (groups,) images of each prompt (`images.packed`); empty if no prompt has any
    images: list[bytes] = field(default_factory=list)
    # (rows,) images of each row after the prompt (`images.packed_later`); empty likewise
    later_images: list[bytes] = field(default_factory=list)
    # (groups,) number of the reference model of each; empty if there is one for all
    teachers: list[int] = field(default_factory=list)
    # (rows,) token ids of the reference's prompt of each row; empty if it reads `prompts`
    teacher_prompts: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.context_starts.numel():
            self.context_starts = torch.zeros_like(self.mask)

    @property
    def num_rows(self) -> int:
        return int(self.lengths.numel())

    @property
    def num_groups(self) -> int:
        return len(self.prompts)

    @property
    def num_tokens(self) -> int:
        """Return the number of response tokens, trained or not."""
        return int(self.response_tokens.numel())

    @property
    def drawn(self) -> Tensor:
        """Return (tokens,) bool: trained tokens that the policy generated."""
        return self.mask if self.given is None else self.mask & ~self.given

    @property
    def offsets(self) -> Tensor:
        """Return (rows + 1,) int64: the start of each row's tokens; the last is `num_tokens`."""
        return torch.cat([self.lengths.new_zeros(1), self.lengths.cumsum(0)])

    @property
    def token_rows(self) -> Tensor:
        """Return (tokens,) int64: the row of each token."""
        return torch.repeat_interleave(torch.arange(self.num_rows), self.lengths)

    @property
    def prompt_lengths(self) -> Tensor:
        """Return (groups,) int64: the number of tokens of each prompt."""
        return torch.tensor([prompt.numel() for prompt in self.prompts], dtype=torch.int64)

    def token_index(self, rows: Tensor) -> Tensor:
        """Return (tokens of these rows,) int64: their positions in the flat columns, row by row."""
        return _index(self.lengths, rows)

    def prompt_index(self, groups: Tensor) -> Tensor:
        """Return (tokens of these prompts,) int64: their positions among all prompts' tokens."""
        return _index(self.prompt_lengths, groups)

    def read_by(self, teacher: int) -> Tensor:
        """Return (rows,) bool: the rows that a reference model reads, by its number."""
        if not self.teachers:
            return torch.ones(self.num_rows, dtype=torch.bool)
        return torch.tensor(self.teachers)[self.row_groups] == teacher

    def as_reference_reads(self) -> Experience:
        """Return the same responses as the reference reads them: its prompts, its own routing.

        A group is split into one for each of the prompts that the reference reads in it.
        """
        rows = replace(self, teacher_prompts=[], experts=None, prompt_experts=None)
        if not self.teacher_prompts:
            return rows
        parts: dict[tuple[int, bytes], int] = {}  # group and prompt to the first row of both
        firsts = [
            parts.setdefault((group, prompt.numpy().tobytes()), row)
            for row, (group, prompt) in enumerate(
                zip(self.row_groups.tolist(), self.teacher_prompts, strict=True)
            )
        ]
        numbers = {row: number for number, row in enumerate(parts.values())}
        divided = [group for group, _ in parts]
        return replace(
            rows,
            prompts=[self.teacher_prompts[row] for row in numbers],
            row_groups=torch.tensor([numbers[row] for row in firsts], dtype=torch.int64),
            images=[self.images[group] for group in divided if self.images],
            teachers=[self.teachers[group] for group in divided if self.teachers],
        )

    def cut(self, parts: int) -> Experience:
        """Return the same rows with each group split into `parts` groups of equal size.

        Groups are consecutive and equally large, and `parts` divides their size. Every part has
        the prompt.
        """
        groups = torch.arange(self.num_groups).repeat_interleave(parts)
        rows = self.num_rows // max(1, len(groups))
        of_prompts = self.prompt_experts
        return replace(
            self,
            prompts=[self.prompts[group] for group in groups.tolist()],
            row_groups=torch.arange(len(groups)).repeat_interleave(rows),
            prompt_experts=None if of_prompts is None else of_prompts[self.prompt_index(groups)],
            images=[self.images[group] for group in groups.tolist() if self.images],
            teachers=[self.teachers[group] for group in groups.tolist() if self.teachers],
        )

    def select(self, rows: Tensor | Sequence[int]) -> Experience:
        """Return the given rows, in the given order, as a separate experience.

        Prompts without rows are dropped; the others are ordered by their first row.
        """
        rows = torch.as_tensor(rows, dtype=torch.int64)
        positions = {
            group: i for i, group in enumerate(dict.fromkeys(self.row_groups[rows].tolist()))
        }
        of_prompts = self.prompt_experts
        if of_prompts is not None:
            groups = torch.tensor(list(positions), dtype=torch.int64)
            of_prompts = of_prompts[self.prompt_index(groups)]
        tokens = self.token_index(rows)
        columns: dict[str, Any] = {
            name: None if (column := getattr(self, name)) is None else column[tokens]
            for name in TOKEN_COLUMNS
        }
        return Experience(
            prompts=[self.prompts[group] for group in positions],
            row_groups=torch.tensor(
                [positions[group] for group in self.row_groups[rows].tolist()], dtype=torch.int64
            ),
            lengths=self.lengths[rows],
            prompt_experts=of_prompts,
            images=[self.images[group] for group in positions if self.images],
            later_images=[self.later_images[row] for row in rows if self.later_images],
            teachers=[self.teachers[group] for group in positions if self.teachers],
            teacher_prompts=[self.teacher_prompts[row] for row in rows if self.teacher_prompts],
            **columns,
        )


def _index(lengths: Tensor, chosen: Tensor) -> Tensor:
    """Return the token positions of the chosen pieces of a concatenation."""
    ends, own = lengths.cumsum(0), lengths[chosen]
    starts = (ends - lengths)[chosen] - (own.cumsum(0) - own)
    return torch.repeat_interleave(starts, own) + torch.arange(int(own.sum()))


def joined(parts: Sequence[Experience]) -> Experience:
    """Concatenate rows; all parts have the same columns."""
    groups = list(itertools.accumulate((part.num_groups for part in parts), initial=0))
    columns: dict[str, Any] = {
        name: torch.cat([getattr(part, name) for part in parts])
        for name in (*TOKEN_COLUMNS, "prompt_experts")
        if getattr(parts[0], name) is not None
    }
    return Experience(
        prompts=[prompt for part in parts for prompt in part.prompts],
        row_groups=torch.cat(
            [part.row_groups + first for part, first in zip(parts, groups, strict=False)]
        ),
        lengths=torch.cat([part.lengths for part in parts]),
        images=_joined_files([(part.images, part.num_groups) for part in parts]),
        later_images=_joined_files([(part.later_images, part.num_rows) for part in parts]),
        teachers=[one for part in parts for one in part.teachers],
        teacher_prompts=[one for part in parts for one in part.teacher_prompts],
        **columns,
    )


def _joined_files(parts: Sequence[tuple[list[bytes], int]]) -> list[bytes]:
    """Concatenate images of parts, and their number; empty if no part has any."""
    if not any(files for files, _ in parts):
        return []
    return [file for files, count in parts for file in files or [b""] * count]


def turn_anchors(rows: Experience) -> Tensor:
    """Return (tokens,) int64 hashes of the input before each turn, to compare turns of equal state.

    A turn is a run of trained tokens. At its first token is a hash of the tokens and images since
    the turn before, 0 elsewhere. For the first turn of a row, it is the hash of nothing.
    """
    anchors = np.zeros(rows.response_tokens.numel(), np.int64)
    tokens, mask, begin = rows.response_tokens.numpy(), rows.mask.numpy(), 0
    later = rows.later_images or [b""] * rows.num_rows
    for images, length in zip(later, rows.lengths.tolist(), strict=True):
        row = slice(begin, begin + length)
        _set_anchors(anchors[row], tokens[row], mask[row], unpacked_later(images))
        begin += length
    return torch.from_numpy(anchors)


def _set_anchors(
    anchors: npt.NDArray[np.int64],
    tokens: npt.NDArray[np.int64],
    mask: npt.NDArray[np.bool_],
    images: Sequence[LaterImage],
) -> None:
    """Write the anchors of a row."""
    edges = np.flatnonzero(np.diff(mask, prepend=False, append=False))
    before = 0
    for begin, end in edges.reshape(-1, 2).tolist():
        state = hashlib.blake2b(tokens[before:begin].tobytes(), digest_size=8)
        for image in images:
            if before <= image.start < begin:
                state.update(image.file)
        anchors[begin] = int.from_bytes(state.digest(), "little", signed=True)
        before = end


_OTHERS = ("prompts", "row_groups", "lengths", "prompt_experts", "images", "later_images",
           "teachers", "teacher_prompts")  # fmt: skip
TOKEN_COLUMNS = tuple(one.name for one in fields(Experience) if one.name not in _OTHERS)
"""Names of the columns with one entry per response token."""

ROUTER_COLUMNS = ("prompt_experts", "experts")
"""Routing of tokens to experts; those of prompts have one entry per token of each prompt."""

COLUMN_DTYPES = {
    **dict.fromkeys(TOKEN_COLUMNS, torch.float32),
    **dict.fromkeys(("response_tokens", "copies"), torch.int64),
    **dict.fromkeys(("mask", "context_starts", "update_mask", "positives", "given"), torch.bool),
    **dict.fromkeys(ROUTER_COLUMNS, torch.int16),
}
"""The dtype of each column of tokens."""
