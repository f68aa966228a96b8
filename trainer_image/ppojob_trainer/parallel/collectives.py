"""What ranks of a world tell each other in a few bytes; all in the order of ranks.

Every function is a collective: all ranks call it, or none. A world of one talks to nobody.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from ppojob_trainer.errors import JobFailed, PPOJobError
from ppojob_trainer.parallel.world import World


def sum_over_ranks(world: World, values: Sequence[float]) -> list[float]:
    """Add up each value over all ranks, in float64 and in the order of ranks.

    So the sum has the same bits everywhere and every time.

    Args:
        world: whose ranks.
        values: as many on every rank.
    """
    if world.size == 1:
        return list(values)
    columns = _gather(world, torch.tensor(values, dtype=torch.float64)).T.tolist()
    return [sum(column) for column in columns]


def sum_over_data(world: World, values: Sequence[float]) -> list[float]:
    """Add up what ranks say of their rows, in float64 and in the order of ranks.

    Ranks of one data-parallel coordinate have the same rows: what its leader says counts.

    Args:
        world: whose ranks.
        values: as many on every rank.
    """
    if world.size == 1:
        return list(values)
    of_ranks = _gather(world, torch.tensor(values, dtype=torch.float64))
    columns = of_ranks[list(world.dims.leaders)].T.tolist()
    return [sum(column) for column in columns]


def largest_over_ranks(world: World, value: int) -> int:
    """The largest of one number a rank."""
    if world.size == 1:
        return value
    return int(_gather(world, torch.tensor([value])).max())


@contextmanager
def refused_together(world: World) -> Iterator[None]:
    """Let what one rank refuses in the block be refused by all of them at its end.

    For work of each rank's own before a collective, in which the others would wait in vain.

    Args:
        world: whose ranks.

    Raises:
        JobFailed: another rank refused; with its words.
    """
    mine: PPOJobError | None = None
    try:
        yield
    except PPOJobError as problem:
        mine = problem
    told = _texts(world, "" if mine is None else str(mine))
    if mine is not None:
        raise mine
    for message in filter(None, told):
        raise JobFailed(message)


def _texts(world: World, text: str) -> list[str]:
    """A text of every rank, mostly empty."""
    if world.size == 1:
        return [text]
    words = torch.tensor(list(text.encode(errors="replace")), dtype=torch.uint8)
    longest = largest_over_ranks(world, len(words))
    if longest == 0:
        return [""] * world.size
    padded = words.new_zeros(longest)
    padded[: len(words)] = words
    return [bytes(row).rstrip(b"\0").decode() for row in _gather(world, padded).tolist()]


def _gather(world: World, values: Tensor) -> Tensor:
    """(ranks, ...) of one tensor (...) a rank, in host memory."""
    mine = values.to(world.device)
    parts = [torch.empty_like(mine) for _ in range(world.size)]
    dist.all_gather(parts, mine, group=world.group)
    return torch.stack(parts).cpu()
