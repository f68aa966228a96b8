"""Vocabulary parallelism: this rank's shard of an output layer's rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from ppojob_trainer.parallel.boxes import box_of, local_part
from ppojob_trainer.parallel.tensor_styles import summed


@dataclass(frozen=True, slots=True)
class VocabularyShard:
    """The tokens of this rank's shard of an output layer; all of them if it is not sharded."""

    size: int  # of the whole vocabulary
    first: int = 0  # first token
    ranks: DeviceMesh | None = None  # of all shards; None if not sharded

    @classmethod
    def of(cls, weight: Tensor) -> VocabularyShard:
        """Return the shard of a matrix (V, h), sharded by rows or not."""
        if not isinstance(weight, DTensor):
            return cls(weight.shape[0])
        return cls(weight.shape[0], box_of(weight).start[0], weight.device_mesh)

    def all_gather(self, values: Tensor) -> Tensor:
        """All-gather (...) in rank order: (ranks, ...)."""
        if self.ranks is None:
            return values[None]
        parts = [torch.empty_like(values) for _ in range(self.ranks.size())]
        dist.all_gather(parts, values, group=self.ranks.get_group())
        return torch.stack(parts)

    def all_reduce(self, values: Tensor) -> Tensor:
        """All-reduce (...)."""
        return values if self.ranks is None else summed(values, self.ranks)


def with_column(weight: Tensor, column: Tensor) -> Tensor:
    """Append a column (V,) to an output layer's matrix (V, h), both sharded by rows or not."""
    both = torch.cat([local_part(weight), local_part(column)[:, None]], dim=1)
    if not isinstance(weight, DTensor):
        return both
    rows, columns = weight.shape[0], both.shape[1]
    return DTensor.from_local(
        both,
        weight.device_mesh,
        weight.placements,
        run_check=False,
        shape=torch.Size((rows, columns)),
        stride=(columns, 1),
    )
