"""Attention of rows too long for a tile: block by block, linear in memory.

FlashAttention-2 (Dao 2023, arXiv:2307.08691) in plain tensor operations. A block of queries meets
the keys it sees block by block, and a running maximum and sum make the softmax whole. All that is
kept for the backward pass is the logarithm of that sum, one number a query and head; gradients of
keys and values are added up in place, always in the same order. Keys are slices of the packed
sequence, so that a shared prompt is neither copied nor indexed.

Legend: T packed tokens, H query heads, K key heads, G = H / K, D head size; a block has Q queries
and S keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import log

import torch
from torch import Tensor

from ppojob_trainer.engine.layout import Span

LOG2_E = 1.0 / log(2.0)


class Dropout:
    """Drops a share of weights, and keeps no mask: the backward pass draws it again.

    Another one of the same seed (`draw_seed`) drops the same, call by call. A share of 0 draws
    nothing. The device is that of the weights.
    """

    def __init__(self, share: float, seed: int, device: torch.device) -> None:
        self._share = share
        self._generator = torch.Generator(device).manual_seed(seed) if share > 0.0 else None

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Multiply tensors of one shape by the same draw of 0 or 1 / (1 - share)."""
        if self._generator is None:
            return tensors
        left = 1.0 - self._share
        kept = torch.empty_like(tensors[0]).bernoulli_(left, generator=self._generator).div_(left)
        return tuple(tensor * kept for tensor in tensors)


def draw_seed() -> int:
    """A seed out of torch's global generator, whose state is part of a checkpoint."""
    return int(torch.randint(2**62, ()))


@dataclass(frozen=True, slots=True)
class LongRows:
    """Rows that are cut into blocks."""

    spans: tuple[Span, ...]  # each at least one token
    block: int  # queries of a block, and keys of a block, at most


@dataclass(frozen=True, slots=True)
class QueryKeyValue:
    """What attention reads, or the gradients of it."""

    query: Tensor  # (T, H, D)
    key: Tensor  # (T, K, D)
    value: Tensor  # (T, K, D)

    def by_key_head(self) -> tuple[Tensor, Tensor, Tensor]:
        """(K, G, T, D), (K, T, D), (K, T, D), the same memory."""
        key, value = self.key.transpose(0, 1), self.value.transpose(0, 1)
        return _by_key_head(self.query, len(key)), key, value


def attend_long_rows(
    rows: LongRows, read: QueryKeyValue, output: Tensor, *, scale: float, dropout: Dropout
) -> Tensor:
    """Write softmax(scale Q K^T) V of some rows.

    Args:
        rows: whose attention is computed.
        read: queries, keys and values of all packed tokens.
        output: (T, H, D), overwritten at the tokens of `rows`.
        scale: factor of the scores.
        dropout: drops weights.

    Returns:
        (K, G, T), at the tokens of `rows` the binary logarithm of what the softmax divides by.
    """
    query, key, value = read.by_key_head()
    output = _by_key_head(output, len(key))
    log_sums = query.new_zeros(query.shape[:-1], dtype=_sum_type(query.dtype))
    for queries, blocks in _blocks(rows):
        left = query[:, :, queries].flatten(1, 2)
        top = log_sums.new_full((*left.shape[:2], 1), -torch.inf)
        total, mixed = torch.zeros_like(top), torch.zeros_like(left, dtype=top.dtype)
        for keys, is_own in blocks:
            scores = _scores(left, key[:, keys], is_own, scale)
            before, top = top, torch.maximum(top, scores.amax(-1, keepdim=True))
            fade, weights = (before - top).exp2_(), scores.sub_(top).exp2_()
            total.mul_(fade).add_(weights.sum(-1, keepdim=True))
            (weights,) = dropout(weights)
            mixed.mul_(fade).add_(torch.bmm(weights.to(value.dtype), value[:, keys]))
        output[:, :, queries] = mixed.div_(total).view_as(output[:, :, queries])
        log_sums[:, :, queries] = total.log2_().add_(top).view_as(log_sums[:, :, queries])
    return log_sums


def differentiate_long_rows(
    rows: LongRows,
    read: QueryKeyValue,
    output: Tensor,
    log_sums: Tensor,
    grad: Tensor,
    grads: QueryKeyValue,
    *,
    scale: float,
    dropout: Dropout,
) -> QueryKeyValue:
    """Add the gradients of `attend_long_rows` to those of the other rows.

    `output` (T, H, D) is what it wrote and `grad` the gradient of that, `log_sums` (K, G, T) what
    it returned; the dropout drops the same again. `grads` are those of the other rows, in whose
    type all come back; that of queries is overwritten at the tokens of `rows`.
    """
    if not rows.spans:
        return grads
    query, key, value = read.by_key_head()
    sums = QueryKeyValue(grads.query, *(x.to(_sum_type(x.dtype)) for x in (grads.key, grads.value)))
    query_grad, key_grad, value_grad = sums.by_key_head()
    output, grad = _by_key_head(output, len(key)), _by_key_head(grad, len(key))
    for queries, blocks in _blocks(rows):
        left, right, mixed = (x[:, :, queries].flatten(1, 2) for x in (query, grad, output))
        log_sum = log_sums[:, :, queries].flatten(1)[:, :, None]
        # What the softmax takes off all gradients of a query's weights: sum of weight * gradient.
        common = (right.to(log_sum.dtype) * mixed).sum(-1, keepdim=True)
        left_grad = torch.zeros_like(left, dtype=log_sum.dtype)
        for keys, is_own in blocks:
            weights = _scores(left, key[:, keys], is_own, scale).sub_(log_sum).exp2_()
            grad_weights = torch.bmm(right, value[:, keys].mT)
            dropped, grad_weights = dropout(weights, grad_weights)
            value_grad[:, keys] += torch.bmm(dropped.to(right.dtype).mT, right)
            grad_scores = grad_weights.to(common.dtype).sub_(common).mul_(weights).to(left.dtype)
            left_grad += scaled_bmm(grad_scores, key[:, keys], scale)
            key_grad[:, keys] += scaled_bmm(grad_scores.mT, left, scale)
        query_grad[:, :, queries] = left_grad.view_as(query_grad[:, :, queries])
    return QueryKeyValue(*(x.to(query.dtype) for x in (sums.query, sums.key, sums.value)))


def scaled_bmm(left: Tensor, right: Tensor, scale: float) -> Tensor:
    """Batched matrix product times a number, in one pass."""
    return torch.baddbmm(left.new_empty(1, 1, 1), left, right, beta=0.0, alpha=scale)


def _sum_type(dtype: torch.dtype) -> torch.dtype:
    """Type of sums over blocks: at least float32."""
    return torch.promote_types(dtype, torch.float32)


def _by_key_head(x: Tensor, key_heads: int) -> Tensor:
    """(T, H, D) as (K, G, T, D), the same memory."""
    return x.view(len(x), key_heads, -1, x.shape[-1]).permute(1, 2, 0, 3)


def _scores(query: Tensor, key: Tensor, is_own: bool, scale: float) -> Tensor:
    """(K, G * Q, D), (K, S, D) to (K, G * Q, S) in `_sum_type`, for powers of two instead of e.

    On a CPU those take a third of the time. Own keys lie causally.
    """
    scores = scaled_bmm(query, key.mT, scale * LOG2_E).to(_sum_type(query.dtype))
    if is_own:
        size = key.shape[1]
        later = scores.new_full((size, size), -torch.inf).triu_(1)
        scores.view(len(key), -1, size, size).add_(later)
    return scores


def _blocks(rows: LongRows) -> Iterator[tuple[slice, list[tuple[slice, bool]]]]:
    """Queries of each block, with the keys of each block they see and whether those are theirs."""
    for span in rows.spans:
        prefix = _pieces(span.prefix_start, span.prefix_length, rows.block)
        own = _pieces(span.start, span.length, rows.block)
        for i, queries in enumerate(own):
            yield queries, [(keys, False) for keys in (*prefix, *own[:i])] + [(queries, True)]


def _pieces(start: int, length: int, largest: int) -> list[slice]:
    """As few pieces as `largest` allows, of about equal lengths."""
    count = -(-length // largest)
    ends = [start + length * i // count for i in range(1, count + 1)]
    return [slice(first, last) for first, last in pairwise([start, *ends])]
