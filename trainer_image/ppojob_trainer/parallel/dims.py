"""Where a rank stands in the layout of its role: pure arithmetic, the same on every machine.

A role's ranks fill a grid of five dimensions. Ranks that differ in `replicate` or `shard` compute
other rows; those that differ in nothing but `pipeline`, `sequence` or `tensor` compute the same
rows together and are one *data-parallel coordinate*, for which its first rank, the leader, speaks.
Experts of a mixture are dealt over the same ranks in another way, see `ParallelDims.of_experts`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal, get_args

import numpy as np

from ppojob_api.v1alpha1.roles import TrainingParallelism

Dimension = Literal["pipeline", "replicate", "shard", "sequence", "tensor"]

WITHIN: tuple[Dimension, ...] = ("pipeline", "sequence", "tensor")
"""Dimensions in which the ranks of one data-parallel coordinate differ."""

HOLDERS: tuple[Dimension, ...] = ("shard", "sequence")
"""Dimensions in which the ranks differ over which FSDP cuts each weight of a copy."""


@dataclass(frozen=True, slots=True)
class ParallelDims:
    """How many ranks there are in each dimension.

    The last one runs fastest: ranks of one pod are neighbours in `tensor`, then `sequence`.
    """

    pipeline: int = 1  # runs of the model's layers
    replicate: int = 1  # copies of the model
    shard: int = 1  # parts of each weight of a copy
    sequence: int = 1  # runs of the tokens of a micro-batch, and as many parts of each shard
    tensor: int = 1  # parts of each matrix product
    expert: int = 1  # no dimension: shares of a layer's experts, whatever dimension ranks differ in

    @classmethod
    def of(cls, layout: TrainingParallelism, ranks: int) -> ParallelDims:
        """The layout of a role: what its shards and all ranks of a coordinate leave are copies."""
        within = layout.pipeline * layout.sequence * layout.tensor
        shard = layout.data_shard or max(1, ranks // within)
        copies = ranks // (shard * within)
        return cls(layout.pipeline, copies, shard, layout.sequence, layout.tensor, layout.expert)

    @property
    def size(self) -> int:
        """Ranks of the role."""
        return prod(self._grid.values())

    @property
    def of_experts(self) -> ParallelDims:
        """The same ranks in the same order, as they hold experts.

        Neighbours, along `sequence` here, share a layer's experts: each of them has some. Those
        along `shard` have parts of the same ones. Nobody has parts of matrix products.
        """
        groups = self.shard * self.sequence * self.tensor // self.expert
        return ParallelDims(self.pipeline, self.replicate, groups, self.expert)

    @property
    def data_size(self) -> int:
        """Number of data-parallel coordinates."""
        return self.replicate * self.shard

    @property
    def leaders(self) -> tuple[int, ...]:
        """The first rank of each data-parallel coordinate."""
        return tuple(ranks[0] for ranks in self.groups(*WITHIN))

    @property
    def speakers(self) -> tuple[int, ...]:
        """The first rank of the last stage of each coordinate, which has the model's outputs."""
        stage = self.sequence * self.tensor
        return tuple(ranks[-stage] for ranks in self.groups(*WITHIN))

    def leader_of(self, rank: int) -> int:
        """The leader of a rank's data-parallel coordinate; it may be that rank."""
        return self.along(rank, *WITHIN)[0]

    def data_coordinate(self, rank: int) -> int:
        """Which rows a rank computes: the number of its data-parallel coordinate."""
        return self.leaders.index(self.leader_of(rank))

    def place(self, rank: int, name: Dimension) -> tuple[int, int]:
        """Where a rank stands in a dimension: its number, and how many there are."""
        ranks = self.along(rank, name)
        return ranks.index(rank), len(ranks)

    def in_first_copy(self, rank: int) -> int:
        """The rank that holds the same part of the first copy of the model."""
        return self.along(rank, "replicate")[0]

    def along(self, rank: int, *names: Dimension) -> tuple[int, ...]:
        """The ranks that differ from this one in nothing but some dimensions; it is among them."""
        return next(ranks for ranks in self.groups(*names) if rank in ranks)

    def groups(self, *names: Dimension) -> list[tuple[int, ...]]:
        """All ranks, in groups that differ in nothing but some dimensions, by their first ranks."""
        sizes = self._grid
        order = sorted(range(len(sizes)), key=lambda axis: list(sizes)[axis] in names)
        grid = np.arange(self.size).reshape(*sizes.values()).transpose(order)
        return [tuple(ranks) for ranks in grid.reshape(-1, prod(sizes[n] for n in names)).tolist()]

    @property
    def _grid(self) -> dict[Dimension, int]:
        """Ranks in each dimension, the slowest first."""
        return {name: getattr(self, name) for name in get_args(Dimension)}
