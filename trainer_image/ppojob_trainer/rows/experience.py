"""Experience: the rows of one step in flat columns, and how rows are taken out of it.

A *row* is one response to one prompt; the rows of one prompt are its *group*. Per-token columns
hold the tokens of all responses one after the other in row order, with no padding: token `t` of row
`i` is at `offsets[i] + t`. Prompts are kept once a group, however many rows answer them. Everything
is in host memory; a forward pass moves what it needs.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor


@dataclass(slots=True)
class Experience:
    """What a step knows about its rows; stages fill in the optional columns.

    Shapes: `rows` responses of `tokens` tokens in all, answering `groups` prompts.

    Attributes:
        prompts: token ids of each group's prompt, `groups` tensors (prompt_tokens,) int64.
        row_groups: (rows,) int64, the index into `prompts` of each row.
        response_tokens: (tokens,) int64, sampled ids, the end token included.
        lengths: (rows,) int64, tokens of each response.
        mask: (tokens,) bool, True where the token is trained: the policy wrote it. What models say
            of the others (log-probabilities, values) is 0.
        update_mask: (tokens,) bool, what of the mask the updates train on; None for all of it.
        copies: (tokens,) int64, how often the updates train on the row; None for once.
        rollout_logprobs: (tokens,) float32, log mu(a_t|s_t) as the sampler reported it.
        old_logprobs: (tokens,) float32, log pi_old(a_t|s_t) of the trainer before the update.
        ref_logprobs: (tokens,) float32, log pi_ref(a_t|s_t).
        entropies: (tokens,) float32, of the policy before the update; None where nobody asks.
        sum_pi_squared: (tokens,) float32, squared probabilities of the policy before the update,
            summed up over the vocabulary; None likewise.
        loss_weights: (tokens,) float32, by which policy losses are multiplied; None for 1.
        values: (tokens,) float32, V(s_t) of the critic before the update.
        turn_rewards: (tokens,) float32, rewards of turns; None where rows have a single one.
        token_rewards: (tokens,) float32, r_t, penalties included.
        advantages: (tokens,) float32, A_t.
        returns: (tokens,) float32, R_t.

    Raises:
        ValueError: when the columns do not fit together.
    """

    prompts: list[Tensor]
    row_groups: Tensor
    response_tokens: Tensor
    lengths: Tensor
    mask: Tensor
    rollout_logprobs: Tensor
    old_logprobs: Tensor | None = None
    ref_logprobs: Tensor | None = None
    entropies: Tensor | None = None
    sum_pi_squared: Tensor | None = None
    loss_weights: Tensor | None = None
    values: Tensor | None = None
    turn_rewards: Tensor | None = None
    token_rewards: Tensor | None = None
    advantages: Tensor | None = None
    returns: Tensor | None = None
    update_mask: Tensor | None = None
    copies: Tensor | None = None

    def __post_init__(self) -> None:
        if self.row_groups.shape != self.lengths.shape:
            raise ValueError(
                f"row_groups: got {tuple(self.row_groups.shape)}: one entry a row is needed; "
                f"lengths has {tuple(self.lengths.shape)}"
            )
        if self.num_rows:
            if int(self.lengths.min()) < 0:
                raise ValueError(f"lengths: got {int(self.lengths.min())}: must not be negative")
            low, high = int(self.row_groups.min()), int(self.row_groups.max())
            if low < 0 or high >= self.num_groups:
                raise ValueError(
                    f"row_groups: got {low}..{high}: must lie in 0..{self.num_groups - 1}"
                )
        if any(prompt.ndim != 1 or prompt.numel() == 0 for prompt in self.prompts):
            raise ValueError("prompts: got an empty prompt: at least one token is needed")
        for name in TOKEN_COLUMNS:
            self._check_column(name)

    def _check_column(self, name: str) -> None:
        column: Tensor | None = getattr(self, name)
        expected = (int(self.lengths.sum()),)
        if column is not None and tuple(column.shape) != expected:
            raise ValueError(
                f"{name}: got shape {tuple(column.shape)}: the lengths add up to {expected}"
            )

    @property
    def num_rows(self) -> int:
        """Number of responses."""
        return int(self.lengths.numel())

    @property
    def num_groups(self) -> int:
        """Number of prompts."""
        return len(self.prompts)

    @property
    def num_tokens(self) -> int:
        """Number of response tokens, trained or not."""
        return int(self.response_tokens.numel())

    @property
    def offsets(self) -> Tensor:
        """(rows + 1,) int64: where each row's tokens start; the last entry is `num_tokens`."""
        return torch.cat([self.lengths.new_zeros(1), self.lengths.cumsum(0)])

    @property
    def token_rows(self) -> Tensor:
        """(tokens,) int64: the row of each token."""
        return torch.repeat_interleave(torch.arange(self.num_rows), self.lengths)

    @property
    def prompt_lengths(self) -> Tensor:
        """(groups,) int64: tokens of each prompt."""
        return torch.tensor([prompt.numel() for prompt in self.prompts], dtype=torch.int64)

    def token_index(self, rows: Tensor) -> Tensor:
        """Positions in the flat columns of the tokens of `rows`, row after row.

        Args:
            rows: (n,) int64 row numbers, in any order.

        Returns:
            (sum of their lengths,) int64.
        """
        lengths = self.lengths[rows]
        starts = self.offsets[rows] - (lengths.cumsum(0) - lengths)
        return torch.repeat_interleave(starts, lengths) + torch.arange(int(lengths.sum()))

    def select(self, rows: Tensor | Sequence[int]) -> Experience:
        """The given rows, in the given order, as an experience of their own.

        Prompts that no row answers are left out; the others keep the order in which the rows first
        name them.
        """
        rows = torch.as_tensor(rows, dtype=torch.int64)
        positions = {
            group: i for i, group in enumerate(dict.fromkeys(self.row_groups[rows].tolist()))
        }
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
            **columns,
        )


def joined(parts: Sequence[Experience]) -> Experience:
    """Rows one after the other; all parts have the same columns."""
    groups = list(itertools.accumulate((part.num_groups for part in parts), initial=0))
    columns: dict[str, Any] = {
        name: torch.cat([getattr(part, name) for part in parts])
        for name in TOKEN_COLUMNS
        if getattr(parts[0], name) is not None
    }
    return Experience(
        prompts=[prompt for part in parts for prompt in part.prompts],
        row_groups=torch.cat(
            [part.row_groups + first for part, first in zip(parts, groups, strict=False)]
        ),
        lengths=torch.cat([part.lengths for part in parts]),
        **columns,
    )


TOKEN_COLUMNS = tuple(
    field.name
    for field in fields(Experience)
    if field.name not in ("prompts", "row_groups", "lengths")
)
"""Names of the columns with one entry a response token."""

COLUMN_DTYPES = {
    **dict.fromkeys(TOKEN_COLUMNS, torch.float32),
    "response_tokens": torch.int64,
    "mask": torch.bool,
    "update_mask": torch.bool,
    "copies": torch.int64,
}
"""The dtype of each of them."""
