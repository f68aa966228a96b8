"""What ranks of a world tell each other in a few bytes; all in the order of ranks.

Every function is a collective: all ranks call it, or none. A world of one talks to nobody.
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
    """Add up each value over all ranks, or some, in float64 and in the order of ranks.

    So the sum has the same bits everywhere and every time. Each rank gives as many values.
    """
    if world.size == 1:
        return list(values)
    of_ranks = _gather(world, torch.tensor(values, dtype=torch.float64))
    columns = of_ranks[list(range(world.size) if ranks is None else ranks)].T.tolist()
    return [sum(column) for column in columns]


def sum_over_data(world: World, values: Sequence[float]) -> list[float]:
    """Add up what ranks say of their rows, as `sum_over_ranks`.

    Ranks of one data-parallel coordinate have the same rows, so that one of them counts: the first
    of those that have what the model puts out.
    """
    return sum_over_ranks(world, values, world.dims.speakers)


def largest_over_ranks(world: World, value: int) -> int:
    """The largest of one number a rank."""
    if world.size == 1:
        return value
    return int(_gather(world, torch.tensor([value])).max())


def shared_within(world: World, mine: Sequence[Item]) -> tuple[list[Item], slice]:
    """What the ranks of this data-parallel coordinate have, and which of it is this rank's.

    Lists, one behind the other in the order of ranks.
    """
    group = world.along(*WITHIN)
    if group is None:
        return list(mine), slice(0, len(mine))
    told: list[list[Item]] = [[] for _ in range(group.size())]
    dist.all_gather_object(told, list(mine), group=group)
    first = sum(map(len, told[: group.rank()]))
    return [item for items in told for item in items], slice(first, first + len(mine))


def told_by_first(world: World, mine: Item | None) -> Item:
    """What the first of the ranks that share this one's engine has; the others have None."""
    told = [mine]
    if world.engine is not None:
        dist.broadcast_object_list(told, group=world.engine, group_src=0)
    (first,) = told
    assert first is not None, "the first one has something"
    return first


@contextmanager
def refused_together(world: World) -> Iterator[None]:
    """Let what one rank refuses in the block be refused by all of them at its end.

    For work of each rank's own before a collective, in which the others would wait in vain.

    Raises:
        JobFailed: another rank refused; with its words.
    """
    mine: PPOJobError | None = None
    try:
        yield
    except PPOJobError as problem:
        mine = problem
    told: list[str | None] = [None]
    if world.size > 1:
        told *= world.size
        dist.all_gather_object(told, mine and str(mine), group=world.group)
    if mine is not None:
        raise mine
    for message in filter(None, told):
        raise JobFailed(message)


def _gather(world: World, values: Tensor) -> Tensor:
    """(ranks, ...) of one tensor (...) a rank, in host memory."""
    mine = values.to(world.device)
    parts = [torch.empty_like(mine) for _ in range(world.size)]
    dist.all_gather(parts, mine, group=world.group)
    return torch.stack(parts).cpu()
