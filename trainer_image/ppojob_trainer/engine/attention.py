"""Attention over packed sequences: exact, linear in memory, without padding outside of it.

Short rows are gathered into tiles of similar lengths; each tile is a few batched matrix products. A
row longer than a tile goes through `long_rows`. The backward pass recomputes attention
probabilities. Memory in addition to queries, keys and values grows linearly with the tokens; each
tile copies the keys of its prompts, padded to at most twice their length. On a CPU tiles take less
than half the time of the fused bfloat16 kernel of `scaled_dot_product_attention` at the lengths of
the demo. On a GPU `varlen_rows` computes everything but float32, dropout, softcaps, attention sinks
and bidirectional spans, which its kernel does not support.

Legend: T packed tokens, t of them on this sequence-parallel rank, H query heads, K key/value heads,
G = H / K (GQA), D head size; a tile has R rows of Q queries and S keys.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from math import isqrt
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from ppojob_trainer.engine.linear_attention import plan_chunks, plan_neighbours
from ppojob_trainer.engine.long_rows import (
    Dropout,
    LongRows,
    QueryKeyValue,
    Scoring,
    attend_long_rows,
    differentiate_long_rows,
    scaled_bmm,
)
from ppojob_trainer.engine.packed_rows import Span, in_chunks
from ppojob_trainer.engine.state_spaces import bind_keywords, use_packed_states
from ppojob_trainer.engine.varlen_rows import VarlenRows, attend_rows, has_kernel
from ppojob_trainer.models.families import FAMILIES
from ppojob_trainer.parallel.sequence import ALL_TOKENS, SequenceRanks

PACKED_ATTENTION = "ppojob_packed"
"""Name under which this attention is registered with transformers."""

TILE_SCORES = 2**20
"""Maximum scores (heads x queries x keys x rows) of a tile or block, for the cache."""

GPU_TILE_SCORES = 2**25
"""The same on a GPU, where launches dominate small tiles."""

HEAD_STREAM = 2**20
"""Stride between the dropout seeds of ranks that hold different heads of the same rows."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows whose attention is computed in one batch; indices count (token, head) pairs."""

    queries: Tensor  # (R * K * G * Q,) int64 indices into T * H; T * H stands for padding
    keys: Tensor  # (R * K * S,) int64 indices into T * K; T * K stands for padding
    hidden: Tensor  # (R, 1, Q, S) bool, True where a query is masked from a key
    shape: tuple[int, int, int, int, int]  # R, K, G, Q, S

    def to(self, device: torch.device) -> "Tile":
        return Tile(
            self.queries.to(device), self.keys.to(device), self.hidden.to(device), self.shape
        )


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Tiles of a packed sequence, and the indices that scatter their results back."""

    tiles: tuple[Tile, ...]  # each query of the short rows is in exactly one of them
    long_rows: LongRows  # rows that do not fit into a tile
    query_slots: Tensor  # (T * H,) int64, index in the concatenated tiles, or after them if long
    key_slots: Tensor  # flat int64, indices of the copies of each key in the concatenated tiles
    key_offsets: Tensor  # (T * K,) int64, start of the copies of each key in `key_slots`
    stream: int = 0  # offset of the dropout seeds

    def to(self, device: torch.device) -> "AttentionPlan":
        return AttentionPlan(
            tuple(tile.to(device) for tile in self.tiles),
            self.long_rows,
            self.query_slots.to(device),
            self.key_slots.to(device),
            self.key_offsets.to(device),
            self.stream,
        )


def plan_attention(
    spans: Sequence[Span],
    *,
    heads: int,
    key_heads: int,
    tile_scores: int = TILE_SCORES,
    stream: int = 0,
    window: int | None = None,
) -> AttentionPlan:
    """Cut the attention of packed rows into tiles and long rows.

    With a sliding `window` a token attends to that many tokens, itself included. Prefixes and
    lengths of the rows of a tile differ by at most a factor of two, which bounds padding. A tile or
    block has at most `tile_scores` scores. Different `stream`s draw different dropout masks.
    """
    total = sum(span.length for span in spans)
    short, long_rows = _cut(spans, heads, tile_scores)
    tiles = tuple(_tile(rows, total, heads, key_heads, window) for rows in short)
    none = torch.empty(0, dtype=torch.int64)
    key_index = torch.cat([none, *(tile.keys for tile in tiles)])
    query_index = torch.cat([none, *(tile.queries for tile in tiles)])
    query_slots = torch.full((total * heads + 1,), query_index.numel())
    query_slots[query_index] = torch.arange(query_index.numel())
    key_slots = torch.argsort(key_index, stable=True)
    copies = torch.bincount(key_index, minlength=total * key_heads + 1)[:-1]
    return AttentionPlan(
        tiles=tiles,
        long_rows=LongRows(tuple(long_rows), max(1, isqrt(tile_scores // heads)), window),
        query_slots=query_slots[:-1],
        key_slots=key_slots[: int(copies.sum())],
        key_offsets=copies.cumsum(0) - copies,
        stream=stream,
    )


class AttentionPlans:
    """Plans of a packed sequence, built on first use: one per sliding window and number of heads.

    Also holds the rows for the varlen kernel of GPUs, and the plans of recurrent layers.
    """

    def __init__(
        self,
        spans: Sequence[Span],
        device: torch.device,
        *,
        ahead_in_windows: bool = False,
        **options: int,
    ) -> None:
        """`options` are passed to `plan_attention`.

        With `ahead_in_windows` only layers with a sliding window are bidirectional within images.
        """
        if device.type == "cuda":
            options = {"tile_scores": GPU_TILE_SCORES, **options}
        self._options = options
        self._spans = spans
        self._is_bidirectional = any(span.bidirectional for span in spans)
        self._ahead_in_windows = ahead_in_windows
        self._device = device
        self._longest = max(span.prefix_length + span.length for span in spans)
        self._made: dict[tuple[int | None, int, int, bool], AttentionPlan] = {}
        self._in_chunks: dict[int, AttentionPlans] = {}
        # By the number of previous tokens that a convolution reads: the chunks, and the indices of
        # these tokens for each token. Without `self` in a closure, plans are freed at once.
        self.chunks = cache(lambda before: plan_chunks(spans, before).to(device))
        self.neighbours = cache(lambda before: plan_neighbours(spans, before).to(device))

    def in_chunks(self, size: int | None) -> "AttentionPlans":
        """Return the plans of chunked attention; those of whole rows for None."""
        if size is None or size >= self._longest:
            return self
        if size not in self._in_chunks:
            spans = tuple(in_chunks(self._spans, size))
            self._in_chunks[size] = AttentionPlans(
                spans, self._device, ahead_in_windows=self._ahead_in_windows, **self._options
            )
        return self._in_chunks[size]

    def is_bidirectional(self, window: int | None) -> bool:
        """Return whether layers with this window have bidirectional spans (images)."""
        return self._is_bidirectional and not (self._ahead_in_windows and window is None)

    def of(self, window: int | None, heads: int, key_heads: int) -> AttentionPlan:
        """Return the plan of a sliding window; windows longer than all rows are ignored."""
        ahead = self.is_bidirectional(window)
        if window is not None and window >= self._longest:
            window = None
        kind = window, heads, key_heads, ahead
        if kind not in self._made:
            spans = self._spans
            if self._is_bidirectional and not ahead:
                spans = [replace(span, bidirectional=()) for span in spans]
            made = plan_attention(
                spans, window=window, heads=heads, key_heads=key_heads, **self._options
            )
            self._made[kind] = made.to(self._device)
        return self._made[kind]

    @cached_property
    def rows(self) -> VarlenRows:
        return VarlenRows.of(self._spans, self._device)


def _cut(
    spans: Sequence[Span], heads: int, tile_scores: int
) -> tuple[list[list[Span]], list[Span]]:
    classes: dict[tuple[int, int], list[Span]] = {}
    for span in spans:
        key = (span.prefix_length.bit_length(), (span.length - 1).bit_length())
        classes.setdefault(key, []).append(span)
    tiles: list[list[Span]] = []
    long_rows: list[Span] = []
    for rows in classes.values():
        queries = max(span.length for span in rows)
        keys = queries + max(span.prefix_length for span in rows)
        step = tile_scores // (heads * queries * keys)
        if step:
            tiles += (rows[i : i + step] for i in range(0, len(rows), step))
        else:
            long_rows += rows
    return tiles, long_rows


def _tile(spans: list[Span], total: int, heads: int, key_heads: int, window: int | None) -> Tile:
    start, length, prefix_start, prefix = torch.tensor(
        [(span.start, span.length, span.prefix_start, span.prefix_length) for span in spans]
    )[:, :, None].unbind(1)
    before, own = torch.arange(int(prefix.max())), torch.arange(int(length.max()))
    queries = torch.where(own < length, start + own, total)
    keys = torch.cat([torch.where(before < prefix, prefix_start + before, total), queries], dim=1)
    seen = torch.cat(
        [
            (before < prefix)[:, None, :].expand(-1, len(own), -1),
            (own <= own[:, None]).expand(len(spans), -1, -1),
        ],
        dim=2,
    )
    for row, span in enumerate(spans):
        for first, end in span.bidirectional:
            run = slice(first - span.start, end - span.start)
            seen[row, run, len(before) :][:, run] = True
    if window is not None:
        of_query = prefix + own
        of_key = torch.cat([before.expand(len(spans), -1), of_query], dim=1)
        seen &= of_query[:, :, None] - of_key[:, None, :] < window
    return Tile(
        queries=_with_heads(queries, heads, total),
        keys=_with_heads(keys, key_heads, total),
        hidden=~seen[:, None],
        shape=(len(spans), key_heads, heads // key_heads, len(own), len(before) + len(own)),
    )


def _with_heads(tokens: Tensor, heads: int, total: int) -> Tensor:
    """Turn (R, n) tokens into (R * heads * n,) indices of (token, head) pairs."""
    pairs = tokens[:, None, :] * heads + torch.arange(heads)[:, None]
    return torch.where(tokens[:, None, :] < total, pairs, total * heads).flatten()


class _PackedAttention(torch.autograd.Function):
    """softmax(scores) V in tiles and blocks."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sinks: Tensor | None,
        plan: AttentionPlan,
        scoring: Scoring,
        share: float,
    ) -> Tensor:
        """(T, H, D), (T, K, D), (T, K, D), maybe (H,) to (T, H, D)."""
        ctx.plan, ctx.scoring = plan, scoring
        # The state of torch's generator is in the checkpoint. Tensor-parallel ranks draw the same
        # seed, but must drop different weights.
        seed = int(torch.randint(2**62, ())) + plan.stream if share > 0.0 else 0
        ctx.dropout = share, seed, query.device
        dropout = Dropout(*ctx.dropout)
        query_rows, key_rows, value_rows = map(_padded_rows, (query, key, value))
        outputs = []
        for tile in plan.tiles:
            rows, keys, values = _gather(tile, query_rows, key_rows, value_rows)
            scores = _scores(tile, rows, keys, scoring)
            (weights,) = dropout(_weights(tile, scores, sinks)[0])
            outputs.append(torch.bmm(weights, values).view(-1, query.shape[-1]))
        output = _in_order(outputs, plan, query)
        read = QueryKeyValue(query, key, value, sinks)
        log_sums = attend_long_rows(plan.long_rows, read, output, scoring=scoring, dropout=dropout)
        ctx.save_for_backward(query, key, value, sinks, output, log_sums)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the gradients of the inputs; probabilities are recomputed tile by tile."""
        query, key, value, sinks, output, log_sums = ctx.saved_tensors
        plan: AttentionPlan = ctx.plan
        scoring: Scoring = ctx.scoring
        dropout = Dropout(*ctx.dropout)
        query_rows, key_rows, value_rows = map(_padded_rows, (query, key, value))
        grad_rows = _padded_rows(grads[0])
        query_grads, key_grads, value_grads = [], [], []
        sink_grads = None if sinks is None else torch.zeros_like(sinks)
        size = query.shape[-1]
        for tile in plan.tiles:
            rows, keys, values = _gather(tile, query_rows, key_rows, value_rows)
            grad = grad_rows.index_select(0, tile.queries).view(rows.shape)
            scores = _scores(tile, rows, keys, scoring)
            slope = scoring.slope(scores)
            weights, left = _weights(tile, scores, sinks)
            dropped, grad_weights = dropout(weights, torch.bmm(grad, values.mT))
            value_grads.append(torch.bmm(dropped.mT, grad).view(-1, size))
            grad_scores = torch._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
            if left is not None and sink_grads is not None:
                weighted_sum = (weights * grad_weights).sum(-1, keepdim=True).to(left.dtype)
                sink_grads.sub_(_by_head(tile, left * weighted_sum).sum((0, 3)).flatten())
            if slope is not None:
                grad_scores.mul_(slope)
            query_grads.append(scaled_bmm(grad_scores, keys, scoring.scale).view(-1, size))
            key_grads.append(scaled_bmm(grad_scores.mT, rows, scoring.scale).view(-1, size))
        total = differentiate_long_rows(
            plan.long_rows,
            QueryKeyValue(query, key, value, sinks),
            output,
            log_sums,
            grads[0],
            QueryKeyValue(
                _in_order(query_grads, plan, query),
                _sum_copies(key_grads, plan, key),
                _sum_copies(value_grads, plan, value),
                sink_grads,
            ),
            scoring=scoring,
            dropout=dropout,
        )
        return total.query, total.key, total.value, total.sinks, None, None, None


def _padded_rows(x: Tensor) -> Tensor:
    """Reshape (T, heads, D) to (T * heads + 1, D); the last row is zero padding."""
    return F.pad(x.reshape(-1, x.shape[-1]), (0, 0, 0, 1))


def _gather(tile: Tile, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gather queries (R * K, G * Q, D), keys and values (R * K, S, D) of a tile."""
    rows, key_heads, per_key, queries, keys = tile.shape
    batch, size = rows * key_heads, query.shape[-1]
    return (
        query.index_select(0, tile.queries).view(batch, per_key * queries, size),
        key.index_select(0, tile.keys).view(batch, keys, size),
        value.index_select(0, tile.keys).view(batch, keys, size),
    )


def _scores(tile: Tile, query: Tensor, key: Tensor, scoring: Scoring) -> Tensor:
    """Return scores (R * K, G * Q, S), -inf where a query is masked from a key."""
    rows, key_heads, per_key, queries, keys = tile.shape
    scores = scoring.capped(scaled_bmm(query, key.mT, scoring.scale))
    scores.view(rows, key_heads * per_key, queries, keys).masked_fill_(tile.hidden, -torch.inf)
    return scores


def _weights(tile: Tile, scores: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return softmax of scores (R * K, G * Q, S), and the sinks' weights (R * K, G * Q, 1)."""
    weights = torch.softmax(scores, dim=-1)
    if sinks is None:
        return weights, None
    log_sums = scores.to(sinks.dtype).logsumexp(-1, keepdim=True)
    distance = _by_head(tile, log_sums) - sinks.view(1, *tile.shape[1:3], 1)
    factor = distance.sigmoid().view_as(log_sums)
    return weights.mul_(factor), (-distance).sigmoid().view_as(log_sums)


def _by_head(tile: Tile, of_queries: Tensor) -> Tensor:
    """Reshape (R * K, G * Q, 1) to (R, K, G, Q)."""
    return of_queries.view(tile.shape[:4])


def _in_order(parts: list[Tensor], plan: AttentionPlan, like: Tensor) -> Tensor:
    """Scatter the outputs of the tiles to (T, H, D); 0 for queries of long rows."""
    rows = torch.cat([*parts, like.new_zeros(1, like.shape[-1])])
    return rows.index_select(0, plan.query_slots).view(like.shape)


def _sum_copies(grads: list[Tensor], plan: AttentionPlan, like: Tensor) -> Tensor:
    """Sum the gradients (T, K, D) over all copies of each key, in a fixed order."""
    rows = torch.cat([*grads, like.new_zeros(1, like.shape[-1])])
    return F.embedding_bag(plan.key_slots, rows, plan.key_offsets, mode="sum").view(like.shape)


def attend_packed(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    attention_plans: AttentionPlans,
    sequence_ranks: SequenceRanks = ALL_TOKENS,
    scaling: float,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """Compute attention, as called by transformers; masks are in the plans.

    Queries are (1, H, t, D), keys (1, K, t, D) and values (1, K, t, V <= D) of this rank's tokens,
    after RoPE; `s_aux` (H,) are the attention sinks. Plans cover all tokens; `attention_plans` and
    `sequence_ranks` are keyword arguments of the model's forward; `module.attention_chunk` is the
    size of Llama 4's chunks. Returns (1, t, H, V), and None for attention weights.
    """
    attention_plans = attention_plans.in_chunks(getattr(module, "attention_chunk", None))
    width = value.shape[-1]
    if width < query.shape[-1]:  # of MLA: pad values to D
        value = F.pad(value, (0, query.shape[-1] - width))
    # Under autocast RoPE leaves queries and keys in float32; products run in value's dtype.
    packed = (x[0].transpose(0, 1).to(value.dtype) for x in (query, key, value))
    with torch.autocast(query.device.type, enabled=False):
        queries, keys, values = sequence_ranks.to_heads(*packed)
        is_plain = (
            softcap is None
            and s_aux is None
            and not attention_plans.is_bidirectional(sliding_window)
        )
        if has_kernel(queries) and dropout == 0.0 and is_plain:
            rows = attention_plans.rows
            output = attend_rows(queries, keys, values, rows, scale=scaling, window=sliding_window)
        else:
            plan = attention_plans.of(sliding_window, queries.shape[1], keys.shape[1])
            scoring = Scoring(scaling, softcap)
            sinks = s_aux
            if sinks is not None:
                exact = torch.promote_types(sinks.dtype, torch.float32)
                sinks = sequence_ranks.own_heads(sinks).to(exact)
            output = _PackedAttention.apply(  # type: ignore[no-untyped-call]
                queries, keys, values, sinks, plan, scoring, dropout
            )
        return sequence_ranks.to_tokens(output)[..., :width].unsqueeze(0), None


def use_packed_attention(model: PreTrainedModel) -> None:
    """Make all layers of a model attend by `attend_packed`."""
    AttentionInterface.register(PACKED_ATTENTION, attend_packed)
    AttentionMaskInterface.register(
        PACKED_ATTENTION, lambda *_, **__: None
    )  # masks are in the plans
    # The vision tower uses its own attention, within each image.
    model.base_model.set_attn_implementation(PACKED_ATTENTION)
    use_packed_states(model)
    if FAMILIES[model.config.model_type].drops_attention_kwargs:
        for layer in model.base_model.layers:
            if hasattr(layer, "self_attn"):  # at this pipeline stage
                attention = layer.self_attn
                bind_keywords(layer, attention, partial(type(attention).forward, attention))
