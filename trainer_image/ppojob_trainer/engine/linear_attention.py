"""Linear attention and short convolutions over packed rows.

Gated delta networks (Yang et al. 2024, arXiv:2412.06464) have a recurrent state S per head, which
each token of a row updates and reads::

    S <- exp(g) S;   S <- S + k (w (v - S^T k))^T;   o = S^T q

Queries, keys and values come from a short causal convolution over the row. This is a chunked scan:
spans are cut into chunks of a few matrix products each (section 3.3 there; Yang et al. 2024,
arXiv:2406.06484). Chunks run in waves: a wave starts from the states of the previous wave. So a
prompt is computed once, and its responses continue from its last state and tokens.

Gated short convolutions (LFM2: arXiv:2511.23404, section 2) of a token's features b, c and x::

    u = b x;   o = c (f_1 u of the token B - 1 before it + ... + f_B u of itself)

The backward pass recomputes all of it, at least in float32, so memory holds one layer at a time.

Legend: T packed tokens, t of them on this sequence-parallel rank, K key heads, H value heads, G = H
/ K, D key size, V value size, N chunks of C tokens, B taps of the convolution.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from ppojob_trainer.engine.packed_rows import Span
from ppojob_trainer.models.families import FAMILIES
from ppojob_trainer.models.hybrid_layers import RECURRENT, layer_types
from ppojob_trainer.parallel.boxes import local_part
from ppojob_trainer.parallel.sequence import SequenceRanks

CHUNK: Final = 64
"""Tokens of a chunk; a shorter one is padded."""


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """The chunks of packed rows, wave after wave."""

    tokens: Tensor  # (N, B - 1 + C) int64, tokens of each chunk and those before it; T for padding
    slots: Tensor  # (T,) int64, index of each token in the N * C
    waves: tuple[int, ...]  # chunks of each wave
    parents: tuple[Tensor, ...]  # of each wave but the first: the chunks that its chunks continue

    def to(self, device: torch.device) -> "ChunkPlan":
        parents = tuple(parent.to(device) for parent in self.parents)
        return ChunkPlan(self.tokens.to(device), self.slots.to(device), self.waves, parents)


def plan_chunks(spans: Sequence[Span], before: int, chunk: int = CHUNK) -> ChunkPlan:
    """Cut spans, all packed tokens in order, into chunks that read `before` previous tokens."""
    waves: list[list[tuple[Span, int, int]]] = []  # span, its first token, parent chunk
    ends: dict[int, tuple[int, int]] = {}  # by a span's start: wave and place of its last chunk
    for span in spans:
        wave, place = ends[span.prefix_start] if span.prefix_length else (-1, 0)
        for first in range(0, span.length, chunk):
            wave += 1
            if wave == len(waves):
                waves.append([])
            waves[wave].append((span, first, place))
            place = len(waves[wave]) - 1
        ends[span.start] = wave, place
    numbers = [
        (span.start, span.length, span.prefix_start, span.prefix_length, first)
        for chunks in waves
        for span, first, _ in chunks
    ]
    start, length, prefix_start, prefix, first_ = torch.tensor(numbers)[:, :, None].unbind(1)
    total = int(sum(span.length for span in spans))
    own = first_ + torch.arange(-before, chunk)
    tokens = torch.where(own < length, placed(own, start, prefix_start, prefix, total), total)
    slots = torch.empty(total + 1, dtype=torch.int64)
    slots[tokens[:, before:].flatten()] = torch.arange(len(numbers) * chunk)
    return ChunkPlan(
        tokens,
        slots[:-1],
        tuple(map(len, waves)),
        tuple(torch.tensor([parent for *_, parent in chunks]) for chunks in waves[1:]),
    )


def placed(own: Tensor, start: Tensor, prefix_start: Tensor, prefix: Tensor, total: int) -> Tensor:
    """Turn token indices relative to spans into packed ones; negative ones are in the prefix.

    Tokens before the prefix get `total`, the index of padding.
    """
    in_prefix = torch.where(prefix + own >= 0, prefix_start + prefix + own, total)
    return torch.where(own < 0, in_prefix, start + own)


@dataclass(frozen=True, slots=True)
class HeadSizes:
    """K, H, D and V of a rank."""

    key_heads: int
    value_heads: int
    key: int
    value: int


def mix_rows(
    mixed: Tensor, filters: Tensor, decay: Tensor, weight: Tensor, sizes: HeadSizes, plan: ChunkPlan
) -> Tensor:
    """Compute the recurrence over all rows: (T, H, V), at least float32.

    `mixed` (T, 2 K D + H V) are queries, keys and values before their convolution, `filters` (2 K D
    + H V, B) those of the convolution, `decay` (T, H) g, at most 0, `weight` (T, H) w, from 0 to 1.
    """
    kind = torch.promote_types(mixed.dtype, torch.float32)
    seen = convolved(mixed, filters, None, plan)
    chunks, length, _ = seen.shape
    own = plan.tokens[:, plan.tokens.shape[1] - length :]

    def by_head(x: Tensor, heads: int) -> Tensor:
        return x.reshape(chunks, length, heads, -1).transpose(1, 2)

    width = sizes.key_heads * sizes.key
    widths = [width, width, sizes.value_heads * sizes.value]
    query, key, value = torch.split(seen, widths, dim=-1)
    # Padding has no weight and no decay, so it changes no state.
    output = _read_states(
        _unit(by_head(query, sizes.key_heads)) * sizes.key**-0.5,
        _unit(by_head(key, sizes.key_heads)),
        by_head(value, sizes.value_heads),
        of_chunks(decay, own, kind).transpose(1, 2),
        of_chunks(weight, own, kind).transpose(1, 2),
        plan,
    )
    return output.transpose(1, 2).flatten(0, 1).index_select(0, plan.slots)


def of_chunks(x: Tensor, tokens: Tensor, kind: torch.dtype) -> Tensor:
    """Gather (T, n) to (N, c, n) by the tokens (N, c) of chunks; padding is zero."""
    rows = F.pad(x, (0, 0, 0, 1)).index_select(0, tokens.flatten()).to(kind)
    return rows.view(*tokens.shape, x.shape[1])


def convolved(mixed: Tensor, filters: Tensor, shifts: Tensor | None, plan: ChunkPlan) -> Tensor:
    """Apply the causal convolution and SiLU to (T, n): (N, C, n), at least float32.

    Filters are (n, B), biases (n,).
    """
    kind = torch.promote_types(mixed.dtype, torch.float32)
    inputs = of_chunks(mixed, plan.tokens, kind)
    length = plan.tokens.shape[1] - filters.shape[1] + 1
    first, *taps = filters.to(kind).unbind(1)
    seen = inputs[:, :length] * first
    for n, tap in enumerate(taps, 1):
        seen = seen + inputs[:, n : n + length] * tap
    return F.silu(seen if shifts is None else seen + shifts.to(kind))


def _unit(x: Tensor) -> Tensor:
    """L2-normalise vectors; the epsilon is that of the models' own code."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def _read_states(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor, weight: Tensor, plan: ChunkPlan
) -> Tensor:
    """Run the chunked scan: (N, K, C, D) twice, (N, H, C, V) and (N, H, C) twice to (N, H, C, V).

    The writes of a chunk's tokens, u = w (v - S^T k), depend on the writes of earlier tokens in it
    and on the state B before it: `u = own - reach B`. One triangular solve gives both.
    """
    groups = value.shape[1] // key.shape[1]
    shares = faded(decay)
    since, fade, left = shares[..., :1], shares[..., 1:].tril(), shares[..., -1, 1:, None]
    query, key, meets, reads = (
        x.repeat_interleave(groups, dim=1) for x in (query, key, key @ key.mT, query @ key.mT)
    )
    given = weight[..., None] * torch.cat([value, since * key], dim=-1)
    written = torch.linalg.solve_triangular(
        weight[..., None] * fade * meets, given, upper=False, unitriangular=True
    )
    own, reach = written.split([value.shape[-1], key.shape[-1]], dim=-1)
    of_waves = zip(
        *(
            x.split(plan.waves)
            for x in (own, reach, since * query, fade * reads, left * key, since[..., -1:, :])
        ),
        strict=True,
    )
    outputs: list[Tensor] = []
    state = value.new_zeros(plan.waves[0], value.shape[1], key.shape[-1], value.shape[-1])
    for number, (own_, reach_, query_, reads_, key_, since_) in enumerate(of_waves):
        if number:
            state = state.index_select(0, plan.parents[number - 1])
        new = own_ - reach_ @ state
        outputs.append(query_ @ state + reads_ @ new)
        state = since_ * state + key_.mT @ new
    return torch.cat(outputs)


def faded(decay: Tensor) -> Tensor:
    """Return the decay from the state after j tokens to token i of a chunk, j of (0, ..., C).

    (..., C) to (..., C, C + 1), 1 where j > i. Each is the exponential of its own sum: differences
    of cumulative sums would lose digits in float32. A matrix product has a fixed order on GPUs too.
    """
    at = torch.arange(decay.shape[-1] + 1, device=decay.device)
    token, behind, since = at[:-1, None, None], at[:-1, None], at
    summed = ((since <= token) & (token <= behind)).to(decay.dtype)
    return (decay @ summed.flatten(1)).exp().view(*decay.shape, -1)


def compute_packed(net: Any, states: Tensor, plans: Any, ranks: SequenceRanks) -> Tensor:
    """Run the forward pass of a gated delta network of transformers over packed rows.

    States in and out are (t, h) of this rank's tokens; `AttentionPlans` cover all tokens, and
    sequence-parallel ranks share the heads.
    """
    parts, gate, by, at = _projected(net, states)
    wide = torch.promote_types(states.dtype, torch.float32)
    rate = F.softplus(at.to(wide) + local_part(net.dt_bias).to(wide))
    decay, weight = -local_part(net.A_log).to(wide).exp() * rate, by.to(wide).sigmoid()
    sizes = HeadSizes(
        net.num_k_heads // ranks.size, net.num_v_heads // ranks.size, net.head_k_dim, net.head_v_dim
    )
    widths = [net.key_dim, net.key_dim, net.value_dim]
    weights = torch.split(local_part(net.conv1d.weight)[:, 0], widths)
    filters = [part.chunk(ranks.size)[ranks.number] for part in weights]
    mixed, plan = (
        torch.cat(ranks.to_columns(*parts), dim=-1),
        plans.chunks(net.conv_kernel_size - 1),
    )
    dealt = torch.cat(filters), *ranks.to_columns(decay, weight)
    read = ranks.to_tokens(checkpointed(mix_rows, mixed, *dealt, sizes, plan))
    normed = net.norm(read.flatten(0, 1), gate.reshape(-1, net.head_v_dim))
    output: Tensor = net.out_proj(normed.view(len(states), -1))
    return output


def checkpointed(mix: Callable[..., Tensor], mixed: Tensor, *others: Any) -> Tensor:
    """Run `mix` over all tokens, (T, H, V), with activation checkpointing, without autocast."""
    with torch.autocast(mixed.device.type, enabled=False):
        read: Tensor = checkpoint(
            mix, mixed, *others, use_reentrant=False, preserve_rng_state=False
        )
        return read.to(mixed.dtype)


def _projected(net: Any, states: Tensor) -> tuple[list[Tensor], Tensor, Tensor, Tensor]:
    """Return queries, keys, values, gates, (t, heads * size), and the inputs of w and g, (t, H).

    Qwen3-Next fuses them in two matrices, ordered by key head.
    """
    if hasattr(net, "in_proj_qkvz"):
        projected = net.in_proj_qkvz(states[None]), net.in_proj_ba(states[None])
        *parts, gate, by, at = (x[0] for x in net.fix_query_key_value_ordering(*projected))
        return [part.flatten(1) for part in parts], gate, by, at
    widths = [net.key_dim, net.key_dim, net.value_dim]
    parts = list(net.in_proj_qkv(states).split(widths, dim=-1))
    return parts, net.in_proj_z(states), net.in_proj_b(states), net.in_proj_a(states)


def plan_neighbours(spans: Sequence[Span], before: int) -> Tensor:
    """Return (before, T) int64, the previous tokens of each in its row, the furthest first."""
    numbers = [(one.start, one.length, one.prefix_start, one.prefix_length) for one in spans]
    start, length, prefix_start, prefix = torch.tensor(numbers).unbind(1)
    start, prefix_start, prefix = (
        one.repeat_interleave(length) for one in (start, prefix_start, prefix)
    )
    total = len(start)
    own = torch.arange(total) - start - torch.arange(before, 0, -1)[:, None]
    return placed(own, start, prefix_start, prefix, total)


def convolve_neighbours(mixed: Tensor, filters: Tensor, neighbours: Tensor) -> Tensor:
    """Convolve (T, H) with filters (H, n): (T, H, 1), at least float32."""
    kind = torch.promote_types(mixed.dtype, torch.float32)
    inputs, (*taps, own) = mixed.to(kind), filters.to(kind).unbind(1)
    padded = F.pad(inputs, (0, 0, 0, 1))
    seen = inputs * own
    for tap, places in zip(taps, neighbours, strict=True):
        seen = seen + padded.index_select(0, places) * tap
    return seen[..., None]


def compute_convolution(net: Any, states: Tensor, plans: Any, ranks: SequenceRanks) -> Tensor:
    """Run the forward pass of a short convolution of transformers; as `compute_packed`."""
    before, behind, values = net.in_proj(states).chunk(3, dim=-1)
    (mixed,) = ranks.to_columns(before * values)
    filters = ranks.own_heads(local_part(net.conv.weight)[:, 0])
    neighbours = plans.neighbours(net.conv_kernel_size - 1)
    seen = ranks.to_tokens(checkpointed(convolve_neighbours, mixed, filters, neighbours))
    output: Tensor = net.out_proj(behind * seen.flatten(1))
    return output


def padded_lengths(model: PreTrainedModel, lengths: Sequence[int]) -> list[int]:
    """Return span lengths as computed: whole chunks, if layers have a recurrent state."""
    kinds = layer_types(model.config.to_dict())
    kind = FAMILIES[model.config.model_type].recurrence
    has_chunks = kind and kind.rule != "convolution" and (kinds is None or RECURRENT in kinds)
    multiple = CHUNK if has_chunks else 1
    return [-(-length // multiple) * multiple for length in lengths]
