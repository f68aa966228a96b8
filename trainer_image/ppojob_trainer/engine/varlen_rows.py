"""Varlen attention over packed rows on GPUs, with PyTorch's flash kernel.

One launch computes all rows. Every row has a copy of its prompt's keys, whose gradients are summed
in a fixed order. The backward kernel is deterministic under `torch.use_deterministic_algorithms`.

Legend: T packed tokens, S concatenated keys of all rows, N rows, H query heads, K key heads, D head
size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from ppojob_trainer.engine.packed_rows import Span
from ppojob_trainer.parallel.linear_map import linear_map

Kernel = Callable[..., Any]
"""`varlen_attn`, or a function with its signature."""

_LARGEST_HEAD: Final = 256
_HEAD_MULTIPLE: Final = 8


def has_kernel(query: Tensor) -> bool:
    """Return whether the kernel takes these queries: (T, H, D) on a GPU, in 16 bits."""
    size = query.shape[-1]
    fits = size <= _LARGEST_HEAD and size % _HEAD_MULTIPLE == 0
    return query.is_cuda and query.dtype in {torch.bfloat16, torch.float16} and fits


@dataclass(frozen=True, slots=True)
class VarlenRows:
    """Offsets of the queries and keys of each row."""

    query_ends: Tensor  # (N + 1,) int32 cumulative lengths, from 0
    key_ends: Tensor  # (N + 1,) int32 cumulative lengths, from 0
    keys: Tensor  # (S,) int64, the token of each key
    key_slots: Tensor  # (S,) int64, the copies of each token among the keys, token by token
    key_offsets: Tensor  # (T,) int64, where the copies of each token begin in `key_slots`
    longest_query: int
    longest_key: int
    has_copies: bool  # whether rows share prompts

    @classmethod
    def of(cls, spans: Sequence[Span], device: torch.device) -> "VarlenRows":
        """Build the rows of spans, which cover the packed tokens in their order."""
        lengths = torch.tensor([span.length for span in spans])
        prefixes = torch.tensor([span.prefix_length for span in spans])
        total, pieces = int(lengths.sum()), []
        for span in spans:
            pieces.append(torch.arange(span.prefix_start, span.prefix_start + span.prefix_length))
            pieces.append(torch.arange(span.start, span.start + span.length))
        keys = torch.cat(pieces)
        copies = torch.bincount(keys, minlength=total)
        return cls(
            query_ends=_ends(lengths).to(device),
            key_ends=_ends(lengths + prefixes).to(device),
            keys=keys.to(device),
            key_slots=keys.argsort(stable=True).to(device),
            key_offsets=(copies.cumsum(0) - copies).to(device),
            longest_query=int(lengths.max()),
            longest_key=int((lengths + prefixes).max()),
            has_copies=bool(prefixes.any()),
        )

    def copy(self, tokens: Tensor) -> Tensor:
        """Gather the keys of each row: (T, K, D) to (S, K, D)."""
        return tokens.index_select(0, self.keys)

    def sum_copies(self, grads: Tensor) -> Tensor:
        """Sum the gradients of all copies of each key, in a fixed order."""
        copies = grads.flatten(1)
        summed = F.embedding_bag(self.key_slots, copies, self.key_offsets, mode="sum")
        return summed.view(-1, *grads.shape[1:])


def _ends(lengths: Tensor) -> Tensor:
    return F.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)


def attend_rows(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rows: VarlenRows,
    *,
    scale: float,
    window: int | None = None,
    kernel: Kernel | None = None,
) -> Tensor:
    """Compute softmax(scale q k) V of every row: (T, H, D), (T, K, D), (T, K, D) to (T, H, D).

    Causal: queries are the last tokens of their row. The sliding window includes the query's token.
    """
    if kernel is None:
        # Imported late: it takes seconds, and only ranks with a GPU need it.
        from torch.nn.attention.varlen import varlen_attn

        kernel = cast("Kernel", varlen_attn)
    if rows.has_copies:
        key, value = (linear_map(x, rows.copy, rows.sum_copies) for x in (key, value))
    output: Tensor = kernel(
        query,
        key,
        value,
        rows.query_ends,
        rows.key_ends,
        rows.longest_query,
        rows.longest_key,
        scale=scale,
        window_size=(-1 if window is None else window - 1, 0),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return output
