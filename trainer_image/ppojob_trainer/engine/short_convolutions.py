"""Gated short convolutions over packed rows (LFM2: arXiv:2511.23404, section 2).

Of a token's features b, c and x, each as wide as its state::

    u = b x;   o = c (f_1 u of the token n - 1 before it + ... + f_n u of itself)

A response sees the last tokens of its prompt, which is computed once for the group, and no token of
another row. Products run at least in float32, and are recomputed in the backward pass.

Legend: T packed tokens, t of them on this sequence-parallel rank, H features, S ranks, n taps.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ppojob_trainer.engine.layout import Span
from ppojob_trainer.engine.linear_attention import HasChunks, checkpointed, placed
from ppojob_trainer.parallel.boxes import local_part
from ppojob_trainer.parallel.sequence import SequenceRanks


def plan_neighbours(spans: Sequence[Span], before: int) -> Tensor:
    """Return (before, T) int64: the previous tokens of each one in its row, the furthest first.

    T stands for padding. Spans cover the packed tokens in order.
    """
    numbers = [(one.start, one.length, one.prefix_start, one.prefix_length) for one in spans]
    start, length, prefix_start, prefix = torch.tensor(numbers).unbind(1)
    start, prefix_start, prefix = (
        one.repeat_interleave(length) for one in (start, prefix_start, prefix)
    )
    total = len(start)
    own = torch.arange(total) - start - torch.arange(before, 0, -1)[:, None]
    return placed(own, start, prefix_start, prefix, total)


def convolved(mixed: Tensor, filters: Tensor, neighbours: Tensor) -> Tensor:
    """Convolve (T, H) with filters (H, n): (T, H, 1), at least float32."""
    kind = torch.promote_types(mixed.dtype, torch.float32)
    inputs, (*taps, own) = mixed.to(kind), filters.to(kind).unbind(1)
    padded = F.pad(inputs, (0, 0, 0, 1))
    seen = inputs * own
    for tap, places in zip(taps, neighbours, strict=True):
        seen = seen + padded.index_select(0, places) * tap
    return seen[..., None]


def compute_packed(net: Any, states: Tensor, plans: HasChunks, ranks: SequenceRanks) -> Tensor:
    """Run the forward pass of a short convolution of transformers, `net`, over packed rows.

    As `linear_attention.compute_packed`; sequence-parallel ranks share the features.
    """
    before, behind, values = net.in_proj(states).chunk(3, dim=-1)
    (mixed,) = ranks.to_columns(before * values)
    filters = ranks.own_heads(local_part(net.conv.weight)[:, 0])
    neighbours = plans.neighbours(net.conv_kernel_size - 1)
    seen = ranks.to_tokens(checkpointed(convolved, mixed, filters, neighbours))
    output: Tensor = net.out_proj(behind * seen.flatten(1))
    return output
