"""What ranks of a world tell each other in a few bytes; all in the order of ranks.

Every function is a collective: all ranks call it, or none. A world of one talks to nobody.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

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


def largest_over_ranks(world: World, value: int) -> int:
    """The largest of one number a rank."""
    if world.size == 1:
        return value
    return int(_gather(world, torch.tensor([value])).max())


def gather_ragged(world: World, values: Tensor) -> list[Tensor]:
    """Every rank's values, by rank.

    Args:
        world: whose ranks.
        values: (n, ...) in host memory; n may differ between ranks, type and other sizes may not.
    """
    if world.size == 1:
        return [values]
    lengths = _gather(world, torch.tensor([values.shape[0]]))[:, 0].tolist()
    padded = values.new_zeros(max(lengths), *values.shape[1:])
    padded[: values.shape[0]] = values
    parts = _gather(world, padded)
    return [part[:length] for part, length in zip(parts, lengths, strict=True)]


def _gather(world: World, values: Tensor) -> Tensor:
    """(ranks, ...) of one tensor (...) a rank, in host memory."""
    mine = values.to(world.device)
    parts = [torch.empty_like(mine) for _ in range(world.size)]
    dist.all_gather(parts, mine, group=world.group)
    return torch.stack(parts).cpu()
