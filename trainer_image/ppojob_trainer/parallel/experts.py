"""Expert ranks: each holds some of the experts of every layer, and tokens travel to them and back.

As in GShard (Lepikhin et al. 2020, arXiv:2006.16668), without a capacity: as many rows travel as
routers send. A row is a token for one of its experts. Gradients take the same ways back, and are
added up at the experts, so no factor appears.

Tensor ranks have the same tokens, of which each sends some: what it says of its tokens, and nothing
of the others, is its summand of what a layer says. Whole experts so serve all kinds of ranks.
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
    """The ranks that share the experts of each layer, in equal runs; by itself a rank has all.

    All of them call each method, in the same order.
    """

    number: int = 0  # of this rank among them
    size: int = 1
    group: dist.ProcessGroup | None = None  # None where there is one
    tensor: tuple[int, int] = (0, 1)  # number of this rank among those with its tokens, and theirs

    @classmethod
    def of(cls, world: World) -> ExpertRanks:
        """Those of this rank."""
        group = world.experts
        if group is None:
            return cls()
        return cls(group.rank(), group.size(), group, world.dims.place(world.rank, "tensor"))

    def own_tokens(self, count: int) -> slice:
        """Which of so many tokens this rank sends: a run, maybe of none."""
        number, size = self.tensor
        return slice(count * number // size, count * (number + 1) // size)

    def holder(self, expert: int, experts: int) -> int:
        """Which of them holds an expert of so many, a multiple of theirs."""
        return expert // (experts // self.size)

    def held(self, experts: int) -> range:
        """The experts that this rank holds, of so many."""
        count = experts // self.size
        return range(self.number * count, (self.number + 1) * count)

    def journey(self, counts: Tensor) -> Journey:
        """The journey of rows of which each expert gets so many: (experts,) int64."""
        if self.group is None:
            return Journey(counts)
        given = counts.view(self.size, -1)
        taken = torch.empty_like(given)
        dist.all_to_all_single(taken, given, group=self.group)
        sent, arriving = torch.stack([given.sum(dim=1), taken.sum(dim=1)]).tolist()
        experts = torch.arange(given.shape[1], device=counts.device).expand_as(taken).flatten()
        of_rows = experts.repeat_interleave(taken.flatten(), output_size=sum(arriving))
        # Of an expert the rows of the first rank come first: sums have one order.
        order = of_rows.argsort(stable=True)
        return Journey(taken.sum(dim=0), order, sent, arriving, self.group)

    def told(self, tensor: Tensor, holder: int) -> Tensor:
        """The tensor of one of them, on all; the others give one of its shape, type and device."""
        if self.group is not None:
            dist.broadcast(tensor, group=self.group, group_src=holder)
        return tensor


ALONE: Final = ExpertRanks()
"""A rank that shares its experts with nobody."""


@dataclass(frozen=True, slots=True)
class Journey:
    """Where rows go that are sorted by experts, in one call of a layer's experts."""

    counts: Tensor  # (held experts,) int64, the rows that each gets of all ranks
    _order: Tensor | None = None  # rows as they arrive, sorted by experts; None where none travels
    _given: list[int] | None = None  # rows for each rank
    _taken: list[int] | None = None  # rows of each rank
    _group: dist.ProcessGroup | None = None

    def there(self, rows: Tensor) -> Tensor:
        """(s, h) of this rank, sorted by all experts, to (r, h), sorted by those it holds."""
        if self._order is None:
            return rows
        return _exchange(rows, self._given, self._taken, self._group)[self._order]

    def back(self, said: Tensor) -> Tensor:
        """(r, h) of the rows that came, to (s, h), in the order in which they were sent."""
        if self._order is None:
            return said
        arrived = torch.empty_like(self._order)
        arrived[self._order] = torch.arange(len(self._order), device=said.device)
        return _exchange(said[arrived], self._taken, self._given, self._group)


class _Exchange(torch.autograd.Function):
    """(s, h): runs of so many rows go to each rank, and so many come. Gradients go back."""

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
