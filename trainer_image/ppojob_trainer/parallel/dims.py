"""Parallel dimensions of a role's ranks: pure arithmetic, the same on every machine.

A role's ranks form a grid of five dimensions. Ranks that differ in `replicate` or `shard` (HSDP)
compute different rows; those that differ only in `pipeline`, `sequence` or `tensor` compute the
same rows together and are one *data-parallel coordinate*, whose first rank is its leader. MoE
experts are distributed over the same ranks in another way, see `ParallelDims.of_experts`.
"""

from dataclasses import dataclass
from math import prod
from typing import Literal, get_args

import numpy as np

from ppojob_api.v1alpha1.roles import TrainingParallelism

Dimension = Literal["pipeline", "replicate", "shard", "sequence", "tensor"]

WITHIN: tuple[Dimension, ...] = ("pipeline", "sequence", "tensor")
"""Dimensions within one data-parallel coordinate."""

HOLDERS: tuple[Dimension, ...] = ("shard", "sequence")
"""Dimensions over which FSDP shards the weights of a replica."""


@dataclass(frozen=True, slots=True)
class ParallelDims:
    """Number of ranks in each dimension.

    The last one varies fastest: ranks of one pod are neighbours in `tensor`, then `sequence`.
    """

    pipeline: int = 1  # pipeline stages
    replicate: int = 1  # replicas of the model (HSDP)
    shard: int = 1  # FSDP shards of each weight of a replica
    sequence: int = 1  # sequence-parallel shards of tokens; weights are sharded over them too
    tensor: int = 1  # tensor-parallel shards of each matrix product
    expert: int = 1  # expert-parallel shares of a layer's experts; not a dimension of the grid

    @classmethod
    def of(cls, layout: TrainingParallelism, ranks: int) -> "ParallelDims":
        """Return the layout of a role: ranks beyond one replica's become replicas."""
        within = layout.pipeline * layout.sequence * layout.tensor
        shard = layout.data_shard or max(1, ranks // within)
        replicas = ranks // (shard * within)
        return cls(layout.pipeline, replicas, shard, layout.sequence, layout.tensor, layout.expert)

    @property
    def size(self) -> int:
        """Number of ranks of the role."""
        return prod(self._grid.values())

    @property
    def of_experts(self) -> "ParallelDims":
        """Return the layout of the same ranks, in the same order, for experts.

        Ranks along `sequence` hold different experts of a layer, ranks along `shard` FSDP shards of
        the same ones. Experts are never tensor-parallel.
        """
        groups = self.shard * self.sequence * self.tensor // self.expert
        return ParallelDims(self.pipeline, self.replicate, groups, self.expert)

    @property
    def data_size(self) -> int:
        """Number of data-parallel coordinates."""
        return self.replicate * self.shard

    @property
    def leaders(self) -> tuple[int, ...]:
        """Return the first rank of each data-parallel coordinate."""
        return tuple(ranks[0] for ranks in self.groups(*WITHIN))

    @property
    def output_ranks(self) -> tuple[int, ...]:
        """Return the first rank of each coordinate's last stage, which has the model's outputs."""
        stage = self.sequence * self.tensor
        return tuple(ranks[-stage] for ranks in self.groups(*WITHIN))

    def leader_of(self, rank: int) -> int:
        """Return the leader of a rank's data-parallel coordinate, possibly itself."""
        return self.along(rank, *WITHIN)[0]

    def data_coordinate(self, rank: int) -> int:
        """Return the index of a rank's data-parallel coordinate."""
        return self.leaders.index(self.leader_of(rank))

    def place(self, rank: int, name: Dimension) -> tuple[int, int]:
        """Return a rank's index in a dimension, and the size of that dimension."""
        ranks = self.along(rank, name)
        return ranks.index(rank), len(ranks)

    def in_first_replica(self, rank: int) -> int:
        """Return the rank that holds the same shard of the first replica."""
        return self.along(rank, "replicate")[0]

    def along(self, rank: int, *names: Dimension) -> tuple[int, ...]:
        """Return the ranks that differ from this one only in these dimensions, itself included."""
        return next(ranks for ranks in self.groups(*names) if rank in ranks)

    def groups(self, *names: Dimension) -> list[tuple[int, ...]]:
        """Return all ranks in groups that differ only in these dimensions, by their first ranks."""
        sizes = self._grid
        order = sorted(range(len(sizes)), key=lambda axis: list(sizes)[axis] in names)
        grid = np.arange(self.size).reshape(*sizes.values()).transpose(order)
        return [tuple(ranks) for ranks in grid.reshape(-1, prod(sizes[n] for n in names)).tolist()]

    @property
    def _grid(self) -> dict[Dimension, int]:
        """Return the size of each dimension, the slowest first."""
        return {name: getattr(self, name) for name in get_args(Dimension)}
