"""Blockwise attention of rows too long for a tile, linear in memory.

FlashAttention-2 (Dao 2023, arXiv:2307.08691) in plain tensor operations: blocks of queries meet
blocks of keys with an online softmax. Only the log-sum-exp, one number per query and head, is
stored for the backward pass; gradients of keys and values are accumulated in a fixed order. Keys
are slices of the packed sequence, so shared prompts are not copied.

Legend: T packed tokens, H query heads, K key heads, G = H / K, D head size; a block has Q queries
and S keys.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log

import torch
from torch import Tensor

from ppojob_trainer.engine.packed_rows import Span

LOG2_E = 1.0 / log(2.0)


class Dropout:
    """Dropout without a stored mask: the backward pass draws it again from the same seed."""

    def __init__(self, share: float, seed: int, device: torch.device) -> None:
        self._share = share
        self._generator = torch.Generator(device).manual_seed(seed) if share > 0.0 else None

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Multiply tensors of one shape by the same draw of 0 or 1 / (1 - share)."""
        if self._generator is None:
            return tensors
        keep_share = 1.0 - self._share
        factors = (
            torch.empty_like(tensors[0])
            .bernoulli_(keep_share, generator=self._generator)
            .div_(keep_share)
        )
        return tuple(tensor * factors for tensor in tensors)


@dataclass(frozen=True, slots=True)
class Scoring:
    """How scores are computed: `scale q k`, or with a softcap `cap tanh(scale q k / cap)`.

    Softcap: Gemma 2 (arXiv:2408.00118), section 2.
    """

    scale: float
    cap: float | None = None

    def capped(self, scores: Tensor, unit: float = 1.0) -> Tensor:
        """Apply the softcap in place; scores are in units of 1 / `unit`."""
        if self.cap is None:
            return scores
        return scores.div_(self.cap * unit).tanh_().mul_(self.cap * unit)

    def slope(self, scores: Tensor, unit: float = 1.0) -> Tensor | None:
        """Return the derivative of the softcap, 0 at -inf; None without one."""
        if self.cap is None:
            return None
        return (scores / (self.cap * unit)).clamp_(min=-1.0).square_().neg_().add_(1.0)


@dataclass(frozen=True, slots=True)
class LongRows:
    """Rows whose attention is computed in blocks."""

    spans: tuple[Span, ...]  # each at least one token
    block: int  # most queries, and most keys, of a block
    window: int | None = None  # sliding window in tokens, with the query itself; None for all


@dataclass(frozen=True, slots=True)
class QueryKeyValue:
    """Inputs of attention, or their gradients.

    A sink is a learnt score per head in the softmax of every query, with value 0 (gpt-oss:
    arXiv:2508.10925, section 2.2).
    """

    query: Tensor  # (T, H, D)
    key: Tensor  # (T, K, D)
    value: Tensor  # (T, K, D)
    sinks: Tensor | None = None  # (H,)

    def by_key_head(self) -> tuple[Tensor, Tensor, Tensor]:
        """View as (K, G, T, D), (K, T, D), (K, T, D)."""
        key, value = self.key.transpose(0, 1), self.value.transpose(0, 1)
        return _by_key_head(self.query, len(key)), key, value


def attend_long_rows(
    rows: LongRows, read: QueryKeyValue, output: Tensor, *, scoring: Scoring, dropout: Dropout
) -> Tensor:
    """Write softmax(scores) V of these rows into `output` (T, H, D), at their tokens.

    `read` are queries, keys and values of all packed tokens. Returns (K, G, T), the base-2
    log-sum-exp at the tokens of `rows`.
    """
    query, key, value = read.by_key_head()
    output = _by_key_head(output, len(key))
    log_sums = query.new_zeros(query.shape[:-1], dtype=_sum_type(query.dtype))
    for queries, blocks in _blocks(rows):
        left = query[:, :, queries].flatten(1, 2)
        if read.sinks is None:
            top = log_sums.new_full((*left.shape[:2], 1), -torch.inf)
            total = torch.zeros_like(top)
        else:  # the first key
            top = _sink_scores(read.sinks, left, len(key)).to(log_sums.dtype).mul_(LOG2_E)
            total = torch.ones_like(top)
        mixed = torch.zeros_like(left, dtype=top.dtype)
        for keys, hide in blocks:
            scores = _scores(left, key[:, keys], hide, scoring)
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
    scoring: Scoring,
    dropout: Dropout,
) -> QueryKeyValue:
    """Compute the backward pass of `attend_long_rows` into `grads`.

    `output` (T, H, D) is its result, `grad` the gradient of that, `log_sums` (K, G, T) its return
    value; `dropout` must draw the same again. `grads` has the gradients of the other rows; those of
    queries are overwritten at the tokens of `rows`, the others accumulated.
    """
    if not rows.spans:
        return grads
    query, key, value = read.by_key_head()
    of_keys, of_values = (x.to(_sum_type(x.dtype)) for x in (grads.key, grads.value))
    sums = QueryKeyValue(grads.query, of_keys, of_values, grads.sinks)
    query_grad, key_grad, value_grad = sums.by_key_head()
    output, grad = _by_key_head(output, len(key)), _by_key_head(grad, len(key))
    for queries, blocks in _blocks(rows):
        left, right, mixed = (x[:, :, queries].flatten(1, 2) for x in (query, grad, output))
        log_sum = log_sums[:, :, queries].flatten(1)[:, :, None]
        # Sum of weight * gradient, subtracted by the softmax's backward pass.
        common = (right.to(log_sum.dtype) * mixed).sum(-1, keepdim=True)
        if read.sinks is not None and sums.sinks is not None:
            scores = _sink_scores(read.sinks, left, len(key)).to(log_sum.dtype).mul_(LOG2_E)
            weights = scores.sub_(log_sum).exp2_()
            sums.sinks.sub_(weights.mul_(common).view(len(sums.sinks), -1).sum(-1))
        left_grad = torch.zeros_like(left, dtype=log_sum.dtype)
        for keys, hide in blocks:
            scores = _scores(left, key[:, keys], hide, scoring)
            slope = scoring.slope(scores, LOG2_E)
            weights = scores.sub_(log_sum).exp2_()
            grad_weights = torch.bmm(right, value[:, keys].mT)
            dropped, grad_weights = dropout(weights, grad_weights)
            value_grad[:, keys] += torch.bmm(dropped.to(right.dtype).mT, right)
            grad_scores = grad_weights.to(common.dtype).sub_(common).mul_(weights)
            if slope is not None:
                grad_scores.mul_(slope)
            grad_scores = grad_scores.to(left.dtype)
            left_grad += scaled_bmm(grad_scores, key[:, keys], scoring.scale)
            key_grad[:, keys] += scaled_bmm(grad_scores.mT, left, scoring.scale)
        query_grad[:, :, queries] = left_grad.view_as(query_grad[:, :, queries])
    found = [x.to(query.dtype) for x in (sums.query, sums.key, sums.value)]
    return QueryKeyValue(found[0], found[1], found[2], sums.sinks)


def scaled_bmm(left: Tensor, right: Tensor, scale: float) -> Tensor:
    """Compute a batched matrix product times a number, in one pass."""
    return torch.baddbmm(left.new_empty(1, 1, 1), left, right, beta=0.0, alpha=scale)


def _sink_scores(sinks: Tensor, queries: Tensor, key_heads: int) -> Tensor:
    """Expand sinks (H,) to scores (K, G * Q, 1), in memory of their own."""
    count = queries.shape[1] * key_heads // len(sinks)
    return sinks.repeat_interleave(count).view(key_heads, -1, 1)


def _sum_type(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of sums over blocks: at least float32."""
    return torch.promote_types(dtype, torch.float32)


def _by_key_head(x: Tensor, key_heads: int) -> Tensor:
    """View (T, H, D) as (K, G, T, D)."""
    return x.view(len(x), key_heads, -1, x.shape[-1]).permute(1, 2, 0, 3)


def _scores(query: Tensor, key: Tensor, hide: "_BlockMask", scoring: Scoring) -> Tensor:
    """Return base-2 scores (K, G * Q, S) in `_sum_type`, of (K, G * Q, D) and (K, S, D).

    On a CPU powers of two take a third of the time of exponentials.
    """
    scores = scaled_bmm(query, key.mT, scoring.scale * LOG2_E).to(_sum_type(query.dtype))
    return hide(scoring.capped(scores, LOG2_E))


@dataclass(frozen=True, slots=True)
class _BlockMask:
    """The causal and sliding-window mask of a block."""

    queries: int
    distance: int  # from the first key to the first query, in tokens; 0 for a span's own keys
    window: int | None
    # (queries, keys) of the block that see each other although not causal
    ahead: tuple[tuple[slice, slice], ...] = ()

    def __call__(self, scores: Tensor) -> Tensor:
        """Mask scores (K, G * Q, S) in place."""
        keys = scores.shape[-1]
        by_query = scores.view(len(scores), -1, self.queries, keys)
        if self.distance <= 0:
            later = scores.new_full((self.queries, keys), -torch.inf).triu_(1 + self.distance)
            for seeing, seen in self.ahead:
                later[seeing, seen] = 0.0
            by_query.add_(later)
        if self.window is not None and self.distance + self.queries > self.window:
            nearest = self.distance - self.window
            by_query.add_(scores.new_full((self.queries, keys), -torch.inf).tril_(nearest))
        return scores


def _blocks(rows: LongRows) -> Iterator[tuple[slice, list[tuple[slice, _BlockMask]]]]:
    """Yield the queries of each block with the blocks of keys they see.

    With a window a span's own keys come first, since every query sees one of them. Keys that are
    only visible bidirectionally come last.
    """
    for span in rows.spans:
        prefix = _pieces(span.prefix_start, span.prefix_length, rows.block)
        own = _pieces(span.start, span.length, rows.block)
        for i, queries in enumerate(own):
            behind = span.prefix_start + span.prefix_length - span.start
            blocks = [(keys, queries.start - keys.start + behind) for keys in prefix]
            blocks += [(keys, queries.start - keys.start) for keys in own[: i + 1]]
            if rows.window is not None:
                first = rows.window - 1  # furthest that the last key may lie behind
                blocks = [
                    (k, d) for k, d in reversed(blocks) if d - (k.stop - k.start - 1) <= first
                ]
            seeing = [one for one in span.bidirectional if _overlap(queries, one)]
            blocks += [
                (keys, queries.start - keys.start)
                for keys in own[i + 1 :]
                if any(_overlap(keys, one) for one in seeing)
            ]
            count = queries.stop - queries.start
            found = []
            for keys, distance in blocks:
                ahead = _ahead(queries, keys, seeing) if distance <= 0 else ()
                found.append((keys, _BlockMask(count, distance, rows.window, ahead)))
            yield queries, found


def _overlap(piece: slice, run: tuple[int, int]) -> slice | None:
    """Return the part of a piece that lies in a run, counted from the beginning of the piece."""
    first, end = max(piece.start, run[0]), min(piece.stop, run[1])
    return slice(first - piece.start, end - piece.start) if first < end else None


def _ahead(
    queries: slice, keys: slice, bidirectional: Sequence[tuple[int, int]]
) -> tuple[tuple[slice, slice], ...]:
    """Return the queries and keys of each bidirectional run that overlaps the block."""
    pairs = [(_overlap(queries, one), _overlap(keys, one)) for one in bidirectional]
    return tuple((left, right) for left, right in pairs if left and right)


def _pieces(start: int, length: int, largest: int) -> list[slice]:
    """Cut into as few pieces as `largest` allows, of about equal lengths."""
    count = -(-length // largest)
    ends = [start + length * i // count for i in range(1, count + 1)]
    return [slice(first, last) for first, last in pairwise([start, *ends])]
