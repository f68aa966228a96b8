"""Expert parallelism: each rank holds some experts of every layer; rows travel by all-to-all.

As in GShard (Lepikhin et al. 2020, arXiv:2006.16668), without a capacity: no row is dropped. A row
is a token for one of its experts. Gradients travel back the same way and accumulate at the experts,
so no factor appears.

Tensor-parallel ranks have the same tokens, and each dispatches some of them: the output for its own
tokens, zero for the others, is its partial sum of the layer's output. Expert parallelism so works
with every other kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from ppojob_trainer.parallel.world import World


@dataclass(frozen=True, slots=True)
class ExpertRanks:
    """The ranks that share the experts of each layer, in equal runs; alone a rank has all.

    All of them call each method, in the same order.
    """

    number: int = 0  # index of this rank among them
    size: int = 1
    group: dist.ProcessGroup | None = None  # None for one rank
    tensor: tuple[int, int] = (0, 1)  # index and number of the ranks with the same tokens

    @classmethod
    def of(cls, world: World) -> ExpertRanks:
        """Return the expert-parallel ranks of this rank."""
        group = world.experts
        if group is None:
            return cls()
        return cls(group.rank(), group.size(), group, world.dims.place(world.rank, "tensor"))

    def own_tokens(self, count: int) -> slice:
        """Return the range of tokens that this rank dispatches, maybe empty."""
        number, size = self.tensor
        return slice(count * number // size, count * (number + 1) // size)

    def holder(self, expert: int, experts: int) -> int:
        """Return the rank that holds an expert; `experts` is a multiple of the ranks."""
        return expert // (experts // self.size)

    def held(self, experts: int) -> range:
        """Return the range of experts that this rank holds."""
        count = experts // self.size
        return range(self.number * count, (self.number + 1) * count)

    def journey(self, counts: Tensor) -> Journey:
        """Plan the dispatch of rows, (experts,) int64 of which go to each expert."""
        if self.group is None:
            return Journey(counts)
        given = counts.view(self.size, -1)
        taken = torch.empty_like(given)
        dist.all_to_all_single(taken, given, group=self.group)
        sent, arriving = torch.stack([given.sum(dim=1), taken.sum(dim=1)]).tolist()
        experts = torch.arange(given.shape[1], device=counts.device).expand_as(taken).flatten()
        of_rows = experts.repeat_interleave(taken.flatten(), output_size=sum(arriving))
        # Rows of an expert are ordered by rank, so that sums have one order.
        order = of_rows.argsort(stable=True)
        return Journey(taken.sum(dim=0), order, sent, arriving, self.group)

    def told(self, tensor: Tensor, holder: int) -> Tensor:
        """Broadcast a tensor from one rank; the others give one of its shape, dtype and device."""
        if self.group is not None:
            dist.broadcast(tensor, group=self.group, group_src=holder)
        return tensor


ALONE: Final = ExpertRanks()
"""A rank that holds all experts."""


@dataclass(frozen=True, slots=True)
class Journey:
    """Dispatch and combine of rows sorted by expert, in one call of a layer's experts."""

    counts: Tensor  # (held experts,) int64, rows that each gets from all ranks
    _order: Tensor | None = None  # received rows, sorted by expert; None without communication
    _given: list[int] | None = None  # rows for each rank
    _taken: list[int] | None = None  # rows of each rank
    _group: dist.ProcessGroup | None = None

    def there(self, rows: Tensor) -> Tensor:
        """Dispatch (s, h) of this rank, sorted by all experts, to (r, h), sorted by held ones."""
        if self._order is None:
            return rows
        return _exchange(rows, self._given, self._taken, self._group)[self._order]

    def back(self, said: Tensor) -> Tensor:
        """Return the outputs (r, h) of received rows to their senders: (s, h), in sent order."""
        if self._order is None:
            return said
        arrived = torch.empty_like(self._order)
        arrived[self._order] = torch.arange(len(self._order), device=said.device)
        return _exchange(said[arrived], self._taken, self._given, self._group)


class _Exchange(torch.autograd.Function):
    """All-to-all of (s, h) with the given numbers of rows; the backward pass returns gradients."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, given: list[int], taken: list[int], group: dist.ProcessGroup
    ) -> Tensor:
        ctx.way = taken, given, group
        return _all_to_all(rows, given, taken, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _all_to_all(grads[0], *ctx.way), None, None, None


def _exchange(rows: Tensor, *way: Any) -> Tensor:
    arrived: Tensor = _Exchange.apply(rows, *way)  # type: ignore[no-untyped-call]
    return arrived


def _all_to_all(
    rows: Tensor, given: list[int], taken: list[int], group: dist.ProcessGroup
) -> Tensor:
    arrived = rows.new_empty(sum(taken), *rows.shape[1:])
    dist.all_to_all_single(arrived, rows.contiguous(), taken, given, group=group)
    return arrived
