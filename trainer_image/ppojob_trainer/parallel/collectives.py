"""Small collectives of a world: sums and gathers in rank order.

All ranks call each function, or none. A world of one does no communication.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ppojob_trainer.errors import JobFailed, PPOJobError
from ppojob_trainer.parallel.dims import WITHIN
from ppojob_trainer.parallel.world import World

Item = TypeVar("Item")


def sum_over_ranks(
    world: World, values: Sequence[float], ranks: Sequence[int] | None = None
) -> list[float]:
    """Sum each value over all ranks, or some, in float64 and in rank order.

    So the sum has the same bits on all ranks and in every run. All ranks pass as many values.
    """
    if world.size == 1:
        return list(values)
    gathered = _all_gather(world, torch.tensor(values, dtype=torch.float64))
    columns = gathered[list(range(world.size) if ranks is None else ranks)].T.tolist()
    return [sum(column) for column in columns]


def sum_over_data(world: World, values: Sequence[float]) -> list[float]:
    """Sum over data-parallel coordinates, of each the first rank with outputs; bits as above."""
    return sum_over_ranks(world, values, world.dims.output_ranks)


def all_gather_over_data(world: World, mine: Tensor) -> tuple[Tensor, slice]:
    """Concatenate (n,) of each data-parallel coordinate, in host memory, and this one's slice."""
    if world.size == 1:
        return mine, slice(0, len(mine))
    gathered = [mine] * world.size
    dist.all_gather_object(gathered, mine, group=world.group)
    parts = [gathered[rank] for rank in world.dims.output_ranks]
    first = sum(map(len, parts[: world.dims.data_coordinate(world.rank)]))
    return torch.cat(parts), slice(first, first + len(mine))


def max_over_ranks(world: World, value: int) -> int:
    """Return the maximum over ranks."""
    if world.size == 1:
        return value
    return int(_all_gather(world, torch.tensor([value])).max())


def gather_within(world: World, mine: Sequence[Item]) -> tuple[list[Item], slice]:
    """Gather a data-parallel coordinate's lists, in rank order, and this rank's slice."""
    group = world.along(*WITHIN)
    if group is None:
        return list(mine), slice(0, len(mine))
    gathered: list[list[Item]] = [[] for _ in range(group.size())]
    dist.all_gather_object(gathered, list(mine), group=group)
    first = sum(map(len, gathered[: group.rank()]))
    return [item for items in gathered for item in items], slice(first, first + len(mine))


def broadcast_in_engine(world: World, mine: Item | None) -> Item:
    """Broadcast from the first rank of this one's engine; the others pass None."""
    values = [mine]
    if world.engine is not None:
        dist.broadcast_object_list(values, group=world.engine, group_src=0)
    (first,) = values
    assert first is not None, "the first rank passes a value"
    return first


@contextmanager
def raise_together(world: World) -> Iterator[None]:
    """Raise an error of one rank in the block on all of them, at its end.

    For work of a single rank before a collective, in which the others would otherwise hang.

    Raises:
        JobFailed: another rank failed; with its message.
    """
    mine: PPOJobError | None = None
    try:
        yield
    except PPOJobError as problem:
        mine = problem
    messages: list[str | None] = [None] * world.size
    if world.size > 1:
        dist.all_gather_object(messages, mine and str(mine), group=world.group)
    if mine is not None:
        raise mine
    for message in filter(None, messages):
        raise JobFailed(message)


def _all_gather(world: World, values: Tensor) -> Tensor:
    """All-gather a tensor (...): (ranks, ...) in host memory."""
    mine = values.to(world.device)
    parts = [torch.empty_like(mine) for _ in range(world.size)]
    dist.all_gather(parts, mine, group=world.group)
    return torch.stack(parts).cpu()
