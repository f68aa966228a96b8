"""Ulysses sequence parallelism (Jacobs et al. 2023, arXiv:2309.14509) of packed sequences.

Each rank has a shard of the tokens for token-wise layers, and a shard of the heads of all tokens
for attention; all-to-all converts between both. Per-token outputs are gathered. Gradients need no
factor: each rank has those of its own computation, and FSDP sums them.

Legend: S ranks, T packed tokens, t = T / S, H query heads, K key heads, K' the least common
multiple of K and S, D head size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import lcm
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from ppojob_trainer.parallel.world import World


@dataclass(frozen=True, slots=True)
class SequenceRanks:
    """The sequence-parallel ranks of a data-parallel coordinate; alone a rank has all tokens.

    All of them call each method, in the same order. Key heads are repeated to K', so that a rank's
    query heads find theirs on the same rank.
    """

    number: int = 0  # index of this rank among them
    size: int = 1
    group: dist.ProcessGroup | None = None  # None for one rank

    @classmethod
    def of(cls, world: World) -> SequenceRanks:
        """Return the sequence-parallel ranks of this rank."""
        group = world.along("sequence")
        return cls() if group is None else cls(group.rank(), group.size(), group)

    def to_heads(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        """All-to-all (t, H, D), (t, K, D) and (t, K, D) to (T, H / S, D) and twice (T, K' / S, D).

        S divides H. All have one dtype.
        """
        if self.size == 1:
            return query, key, value
        copies = lcm(key.shape[1], self.size) // key.shape[1]
        whole = (query, *(x.repeat_interleave(copies, dim=1) for x in (key, value)))
        dealt, size = self.dealt(*(x.flatten(1) for x in whole)), query.shape[-1]
        return tuple(x.reshape(len(x), -1, size) for x in dealt)

    def dealt(self, *parts: Tensor) -> tuple[Tensor, ...]:
        """All-to-all (t, n) each to (T, n / S), this rank's shard of each n; of one dtype."""
        if self.size == 1:
            return parts
        shares = [part.reshape(len(part), self.size, -1) for part in parts]
        sent = torch.cat(shares, dim=2).transpose(0, 1)
        arrived = _exchange(sent, self.group).flatten(0, 1)
        return torch.split(arrived, [share.shape[2] for share in shares], dim=1)

    def own_heads(self, values: Tensor) -> Tensor:
        """Return the values of this rank's query heads: (H,) to (H / S,)."""
        return values.chunk(self.size)[self.number]

    def to_tokens(self, output: Tensor) -> Tensor:
        """All-to-all (T, H / S, D) back to (t, H, D)."""
        if self.size == 1:
            return output
        arrived = _exchange(output.reshape(self.size, -1, *output.shape[1:]), self.group)
        return arrived.transpose(0, 1).flatten(1, 2)

    def every(self, values: Tensor) -> Tensor:
        """All-gather (t, ...) of each rank to (T, ...); no gradient."""
        if self.size == 1:
            return values
        sent = values.contiguous().view(torch.uint8)
        whole = sent.new_empty(self.size * len(sent), *sent.shape[1:])
        dist.all_gather_single(whole, sent, group=self.group)
        return whole.view(values.dtype)

    def summed(self, values: Tensor) -> Tensor:
        """All-reduce the values; no gradient."""
        if self.size > 1:
            dist.all_reduce(values, group=self.group)
        return values

    def total(self, values: Tensor) -> Tensor:
        """All-reduce the values; the gradient is all-reduced too."""
        if self.size == 1:
            return values
        whole: Tensor = _BothWays.apply(values, _summed, self.group)  # type: ignore[no-untyped-call]
        return whole

    def gathered(self, values: Tensor, places: Tensor, total: int) -> Tensor:
        """Scatter the values (n, ...) of all ranks to their places: (total, ...).

        Each place belongs to one rank, which alone gets its gradient; so all ranks must compute the
        same with the result.
        """
        if self.size == 1:
            return values
        whole: Tensor = _Gathered.apply(  # type: ignore[no-untyped-call]
            values, places, total, self.group
        )
        return whole


ALONE: Final = SequenceRanks()
"""A rank that has all tokens."""


class _BothWays(torch.autograd.Function):
    """A collective whose backward pass is the same collective."""

    @staticmethod
    def forward(
        ctx: Any,
        values: Tensor,
        act: Callable[[Tensor, dist.ProcessGroup], Tensor],
        group: dist.ProcessGroup,
    ) -> Tensor:
        ctx.act, ctx.group = act, group
        return act(values, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.act(grads[0], ctx.group), None, None


def _exchange(parts: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """All-to-all (S, ...): part i goes to rank i."""
    arrived: Tensor = _BothWays.apply(parts, _all_to_all, group)  # type: ignore[no-untyped-call]
    return arrived


def _all_to_all(parts: Tensor, group: dist.ProcessGroup) -> Tensor:
    sent = parts.contiguous()
    arrived = torch.empty_like(sent)
    dist.all_to_all_single(arrived, sent, group=group)
    return arrived


def _summed(values: Tensor, group: dist.ProcessGroup) -> Tensor:
    total = values.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


class _Gathered(torch.autograd.Function):
    """See `SequenceRanks.gathered`."""

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, places: Tensor, total: int, group: dist.ProcessGroup
    ) -> Tensor:
        ctx.save_for_backward(places)
        whole = values.new_zeros(total, *values.shape[1:])
        whole[places] = values
        dist.all_reduce(whole, group=group)  # a value plus zeros: no rounding
        return whole

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (places,) = ctx.saved_tensors
        return grads[0][places], None, None, None
