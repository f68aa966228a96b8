"""Mamba-2 over packed rows (Dao and Gu 2024, arXiv:2405.21060).

Such a layer has a recurrent state S per head, which each token of a row decays and writes to::

    S <- exp(d A) S + d k v^T;   o = S^T q + D v

Queries and keys (C and B of the paper) are shared by groups of heads; with the values (x) they come
from a short causal convolution. It is a chunked scan like `linear_attention`'s (section 6 there).
The backward pass recomputes it, at least in float32, `AT_ONCE` heads at a time, so memory in
addition to a layer's input is that of these heads, for rows of any length.

Legend: T packed tokens, t of them on this sequence-parallel rank, G groups, H heads, R = H / G, D
size of queries and keys, V size of values, N chunks of C tokens, w of them in a wave, B taps of the
convolution.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import lcm
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from ppojob_trainer.engine import linear_attention
from ppojob_trainer.engine.linear_attention import (
    ChunkPlan,
    HeadSizes,
    checkpointed,
    convolved,
    faded,
    of_chunks,
)
from ppojob_trainer.models.families import FAMILIES
from ppojob_trainer.models.transformers_modules import recurrent_layers
from ppojob_trainer.parallel.boxes import local_part
from ppojob_trainer.parallel.sequence import ALL_TOKENS, SequenceRanks

Compute = Callable[[Any, Tensor, Any, SequenceRanks], Tensor]
"""The forward pass of a recurrent layer over packed rows."""

AT_ONCE: Final = 32
"""Maximum heads that are computed together."""


@dataclass(frozen=True, slots=True)
class HeadWeights:
    """A layer's weights of some heads."""

    filters: Tensor  # (H V + 2 G D, B) of the convolution
    shifts: Tensor  # (H V + 2 G D,) bias of the convolution
    skips: Tensor  # (H,) D of the recurrence


def mix_rows(
    mixed: Tensor, step: Tensor, decay: Tensor, own: HeadWeights, sizes: HeadSizes, plan: ChunkPlan
) -> Tensor:
    """Compute the recurrence over all rows: (T, H, V), at least float32.

    `mixed` (T, H V + 2 G D) are values, keys and queries before their convolution, `step` (T, H) d,
    at least 0, `decay` (T, H) d A, at most 0.
    """
    kind = torch.promote_types(mixed.dtype, torch.float32)
    seen = convolved(mixed, own.filters, own.shifts, plan)
    count, length, _ = seen.shape
    places = plan.tokens[:, plan.tokens.shape[1] - length :]
    width = sizes.key_heads * sizes.key
    widths = [seen.shape[2] - 2 * width, width, width]
    values, keys, queries = torch.split(seen, widths, dim=-1)

    def by_head(x: Tensor, heads: int) -> Tensor:
        return x.reshape(count, length, heads, -1).transpose(1, 2)

    value = by_head(values, sizes.value_heads)
    # Padding writes nothing and does not decay, so it changes no state.
    step, decay = (of_chunks(x, places, kind).transpose(1, 2) for x in (step, decay))
    read = _read_states(
        by_head(queries, sizes.key_heads),
        by_head(keys, sizes.key_heads),
        step[..., None] * value,
        decay,
        plan,
    )
    output = read + own.skips.to(kind)[:, None, None] * value
    return output.transpose(1, 2).flatten(0, 1).index_select(0, plan.slots)


Run = tuple[Tensor, Tensor, Tensor, HeadWeights, HeadSizes]
"""Arguments of `mix_rows` for some heads."""


def in_runs(
    mixed: Tensor,
    step: Tensor,
    decay: Tensor,
    own: HeadWeights,
    sizes: HeadSizes,
    at_once: int = AT_ONCE,
) -> list[Run]:
    """Split the arguments of `mix_rows` by `at_once` heads: whole groups, or parts of one."""
    of_group = sizes.value_heads // sizes.key_heads
    heads = max(
        n
        for n in range(1, min(at_once, sizes.value_heads) + 1)
        if of_group % n == 0 or (n % of_group == 0 and sizes.value_heads % n == 0)
    )
    if heads == sizes.value_heads:
        return [(mixed, step, decay, own, sizes)]
    groups, parts = max(1, heads // of_group), max(1, of_group // heads)
    width = sizes.key_heads * sizes.key

    def cut(channels: Tensor, dim: int) -> list[Tensor]:
        widths = [channels.shape[dim] - 2 * width, width, width]
        values, *shared = torch.split(channels, widths, dim)
        each = (
            [run for run in torch.split(one, groups * sizes.key, dim) for _ in range(parts)]
            for one in shared
        )
        found = zip(torch.split(values, heads * sizes.value, dim), *each, strict=True)
        return [torch.cat(run, dim) for run in found]

    skips = torch.split(own.skips, heads)
    weights = map(HeadWeights, cut(own.filters, 0), cut(own.shifts, 0), skips)
    by_token = (torch.split(one, heads, dim=1) for one in (step, decay))
    states = zip(cut(mixed, 1), *by_token, weights, strict=True)
    return [(*run, HeadSizes(groups, heads, sizes.key, sizes.value)) for run in states]


def _read_states(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor, plan: ChunkPlan
) -> Tensor:
    """Run the chunked scan: (N, G, C, D) twice, (N, H, C, V) and (N, H, C) to (N, H, C, V)."""
    count, groups, length, size = query.shape
    heads, width = value.shape[1], value.shape[3]
    shares = faded(decay)
    since, fade, left = shares[..., :1], shares[..., 1:].tril(), shares[..., -1, 1:, None]
    # A token reads the writes of earlier tokens in its chunk, and its own.
    reads = fade.view(count, groups, -1, length, length) * (query @ key.mT)[:, :, None]
    within = reads.view(count, heads, length, length) @ value

    def of_groups(x: Tensor) -> Tensor:  # (w, H, C, V) to (w, G, C, R V): one product per group
        return x.view(len(x), groups, -1, length, width).transpose(2, 3).flatten(3)

    def of_heads(x: Tensor) -> Tensor:  # and back, for any number of rows
        rows = x.shape[2]
        turned = x.view(len(x), groups, rows, -1, width).transpose(2, 3)
        return turned.reshape(-1, heads, rows, width)

    outputs: list[Tensor] = []
    state = value.new_zeros(plan.waves[0], groups, size, heads // groups * width)
    of_waves = zip(
        *(
            torch.split(x, list(plan.waves))
            for x in (query, key, left * value, since, shares[..., -1:, :1])
        ),
        strict=True,
    )
    for number, (query_, key_, written, since_, kept) in enumerate(of_waves):
        if number:
            state = state.index_select(0, plan.parents[number - 1])
        outputs.append(since_ * of_heads(query_ @ state))
        fading = kept.view(len(kept), groups, 1, -1, 1).expand(-1, -1, -1, -1, width).flatten(3)
        state = fading * state + key_.mT @ of_groups(written)
    return within + torch.cat(outputs)


def compute_packed(net: Any, states: Tensor, plans: Any, ranks: SequenceRanks) -> Tensor:
    """Run the forward pass of a Mamba-2 layer; see `linear_attention.compute_packed`.

    Ranks that share the heads of a group each have a copy of its queries and keys.
    """
    keys = net.n_groups * net.ssm_state_size
    widths = [net.intermediate_size, keys, keys]
    each = [net.intermediate_size, *widths, net.num_heads]
    gate, *parts, rate = torch.split(_projected(net, states), each, dim=-1)
    wide = torch.promote_types(states.dtype, torch.float32)
    step = F.softplus(rate.to(wide) + local_part(net.dt_bias).to(wide))
    decay = -local_part(net.A_log).to(wide).exp() * step
    copies = lcm(net.n_groups, ranks.size) // net.n_groups

    def shares(values: Tensor, *of_groups: Tensor) -> list[Tensor]:  # (..., heads or groups * n)
        each = (x.view(*x.shape[:-1], net.n_groups, -1) for x in of_groups)
        return [values, *(x.repeat_interleave(copies, -2).flatten(-2) for x in each)]

    def own(weight: Tensor) -> Tensor:  # (channels, ...)
        parts = shares(*torch.split(weight.mT if weight.ndim > 1 else weight, widths, dim=-1))
        run = torch.cat([part.chunk(ranks.size, -1)[ranks.number] for part in parts], dim=-1)
        return run.mT if weight.ndim > 1 else run

    weights = HeadWeights(
        own(local_part(net.conv1d.weight)[:, 0]),
        own(local_part(net.conv1d.bias)),
        ranks.own_heads(local_part(net.D)).clone(),
    )
    sizes = HeadSizes(
        net.n_groups * copies // ranks.size,
        net.num_heads // ranks.size,
        net.ssm_state_size,
        net.head_dim,
    )
    mixed = torch.cat(ranks.to_columns(*shares(*parts)), dim=-1)
    plan = plans.chunks(net.conv_kernel_size - 1)
    step, decay = ranks.to_columns(step, decay)
    runs = in_runs(mixed, step, decay, weights, sizes)
    read = torch.cat([checkpointed(mix_rows, *run, plan) for run in runs], dim=1)
    own_read = ranks.to_tokens(read).flatten(1)
    is_normed = not isinstance(net.norm, nn.Identity)
    gated = net.norm(own_read, gate) if is_normed else own_read * F.silu(gate)
    output: Tensor = net.out_proj(gated.to(states.dtype))
    return output


def _projected(net: Any, states: Tensor) -> Tensor:
    """Return gates, values, keys, queries and steps, with Falcon's multiplier of each."""
    if not hasattr(net, "mup_vector"):
        projected: Tensor = net.in_proj(states)
        return projected
    scaled: Tensor = net.in_proj(states * net.ssm_in_multiplier) * net.mup_vector[0, 0]
    return scaled


def use_packed_states(model: PreTrainedModel) -> None:
    """Make the recurrent layers of a model, if any, run over packed rows."""
    kind = FAMILIES[model.config.model_type].recurrence
    if kind is None:
        return
    for layer, net in recurrent_layers(model):
        net.forward = partial(_forward, net, _COMPUTE[kind.rule])
        if kind.rule == "convolution":
            bind_keywords(layer, net, net.forward)


def bind_keywords(layer: nn.Module, part: Any, forward: Callable[..., Any]) -> None:
    """Call `part` of a layer with the keywords of the pass that transformers' layer drops.

    Bound at each call, since activation checkpointing may recompute a layer after another pass.
    """

    def bind(_layer: nn.Module, _args: Any, options: dict[str, Any]) -> None:
        part.forward = partial(forward, **{key: options[key] for key in KEYWORDS if key in options})

    layer.register_forward_pre_hook(bind, with_kwargs=True)


_COMPUTE: Final[Mapping[str, Compute]] = {
    "delta": linear_attention.compute_packed,
    "mamba": compute_packed,
    "convolution": linear_attention.compute_convolution,
}
KEYWORDS: Final = ("attention_plans", "sequence_ranks")


def _forward(
    net: Any,
    compute: Compute,
    hidden_states: Tensor,
    *,
    attention_plans: Any = None,
    sequence_ranks: SequenceRanks = ALL_TOKENS,
    **options: Any,
) -> Tensor:
    """Run a layer's forward pass, (1, t, h) to the same, with the keywords of `attend_packed`.

    Without plans it is that of transformers.
    """
    if attention_plans is None:
        padded: Tensor = type(net).forward(net, hidden_states, **options)
        return padded
    return compute(net, hidden_states[0], attention_plans, sequence_ranks)[None]
