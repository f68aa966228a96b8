"""Ulysses sequence parallelism (Jacobs et al. 2023, arXiv:2309.14509) of packed sequences.

Each rank has a shard of the tokens for token-wise layers, and a shard of the heads of all tokens
for attention; all-to-all converts between both. Per-token outputs are gathered. Gradients need no
factor: each rank has those of its own computation, and FSDP sums them.

Legend: S ranks, T packed tokens, t = T / S, H query heads, K key heads, K' the least common
multiple of K and S, D head size.
"""

from dataclasses import dataclass
from math import lcm
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor

from ppojob_trainer.parallel.linear_map import linear_map
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
    def of(cls, world: World) -> "SequenceRanks":
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
        heads = (query, *(x.repeat_interleave(copies, dim=1) for x in (key, value)))
        own, size = self.to_columns(*(x.flatten(1) for x in heads)), query.shape[-1]
        return tuple(x.reshape(len(x), -1, size) for x in own)

    def to_columns(self, *parts: Tensor) -> tuple[Tensor, ...]:
        """All-to-all (t, n) each to (T, n / S), this rank's shard of each n; of one dtype."""
        if self.size == 1:
            return parts
        shards = [part.reshape(len(part), self.size, -1) for part in parts]
        sent = torch.cat(shards, dim=2).transpose(0, 1)
        received = _exchange(sent, self.group).flatten(0, 1)
        return torch.split(received, [shard.shape[2] for shard in shards], dim=1)

    def own_heads(self, values: Tensor) -> Tensor:
        """Return the values of this rank's query heads: (H,) to (H / S,)."""
        return values.chunk(self.size)[self.number]

    def to_tokens(self, output: Tensor) -> Tensor:
        """All-to-all (T, H / S, D) back to (t, H, D)."""
        if self.size == 1:
            return output
        received = _exchange(output.reshape(self.size, -1, *output.shape[1:]), self.group)
        return received.transpose(0, 1).flatten(1, 2)

    def all_gather(self, values: Tensor) -> Tensor:
        """All-gather (t, ...) of each rank to (T, ...); no gradient."""
        if self.size == 1:
            return values
        sent = values.contiguous().view(torch.uint8)
        received = sent.new_empty(self.size * len(sent), *sent.shape[1:])
        dist.all_gather_single(received, sent, group=self.group)
        return received.view(values.dtype)

    def all_reduce_(self, values: Tensor) -> Tensor:
        """All-reduce the values in place; no gradient."""
        if self.size > 1:
            dist.all_reduce(values, group=self.group)
        return values

    def sum_with_gradient(self, values: Tensor) -> Tensor:
        """All-reduce the values; the gradient is all-reduced too."""
        if self.size == 1:
            return values

        def total(values: Tensor) -> Tensor:
            summed = values.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(summed, group=self.group)
            return summed

        return linear_map(values, total, total)

    def gather_at(self, values: Tensor, places: Tensor, total: int) -> Tensor:
        """All-gather the values (n, ...) of all ranks to their places: (total, ...).

        Each place belongs to one rank, and only that gets its gradient; so all ranks must compute
        the same with the result.
        """
        if self.size == 1:
            return values

        def gather(values: Tensor) -> Tensor:
            gathered = values.new_zeros(total, *values.shape[1:])
            gathered[places] = values
            dist.all_reduce(gathered, group=self.group)  # a value plus zeros: no rounding
            return gathered

        return linear_map(values, gather, lambda grad: grad[places])


ALL_TOKENS: Final = SequenceRanks()
"""A rank that has all tokens."""


def _exchange(parts: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """All-to-all (S, ...): part i goes to rank i."""

    def exchange(parts: Tensor) -> Tensor:
        sent = parts.contiguous()
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=group)
        return received

    return linear_map(parts, exchange, exchange)
