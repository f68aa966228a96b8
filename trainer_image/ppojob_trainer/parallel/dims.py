"""Where a rank stands in the layout of its role: pure arithmetic, the same on every machine.

A role's ranks fill a box of five dimensions. Ranks that differ in `replicate` or `shard` compute
other rows; those that differ in nothing but `pipeline`, `sequence` or `tensor` compute the same
rows together and are one *data-parallel coordinate*, for which its first rank, the leader, speaks.
"""

from __future__ import annotations

import itertools
from dataclasses import astuple, dataclass
from math import prod
from typing import Literal, NamedTuple

from ppojob_api.v1alpha1.roles import TrainingParallelism

Dimension = Literal["pipeline", "replicate", "shard", "sequence", "tensor"]

WITHIN: tuple[Dimension, ...] = ("pipeline", "sequence", "tensor")
"""Dimensions in which the ranks of one data-parallel coordinate differ."""


class Coordinate(NamedTuple):
    """Where a rank stands, counted from 0 in each dimension.

    Attributes:
        pipeline: which layers of the model are here.
        replicate: which copy of the model.
        shard: which part of each weight of that copy.
        sequence: which part of each row.
        tensor: which part of each matrix product.
    """

    pipeline: int = 0
    replicate: int = 0
    shard: int = 0
    sequence: int = 0
    tensor: int = 0


@dataclass(frozen=True, slots=True)
class ParallelDims:
    """How many ranks there are in each dimension of `Coordinate`.

    The last dimension runs fastest: ranks of one pod are neighbours in `tensor`, then `sequence`.

    Raises:
        ValueError: one is not positive.
    """

    pipeline: int = 1
    replicate: int = 1
    shard: int = 1
    sequence: int = 1
    tensor: int = 1

    def __post_init__(self) -> None:
        if min(astuple(self)) < 1:
            raise ValueError(f"dims: got {self}: every rank has a place in each; all at least 1")

    @classmethod
    def of(cls, layout: TrainingParallelism, ranks: int) -> ParallelDims:
        """The layout of a role: what its shards and tensor ranks leave are copies.

        Args:
            layout: of the resolved spec.
            ranks: of the role.

        Raises:
            ValueError: they do not fill it.
        """
        shard = layout.data_shard or ranks // layout.tensor
        copies = max(1, ranks // (shard * layout.tensor))
        dims = cls(replicate=copies, shard=shard, tensor=layout.tensor)
        dims.check_size(ranks)
        return dims

    def check_size(self, ranks: int) -> None:
        """Refuse a number of ranks that does not fill the layout.

        Raises:
            ValueError: it is another.
        """
        if self.size != ranks:
            raise ValueError(
                f"dims: got {ranks} ranks: {self} has {self.size} places; as many ranks as places"
            )

    @property
    def size(self) -> int:
        """Ranks of the role."""
        return prod(astuple(self))

    @property
    def data_size(self) -> int:
        """Number of data-parallel coordinates."""
        return self.replicate * self.shard

    @property
    def leaders(self) -> tuple[int, ...]:
        """The rank that speaks for each data-parallel coordinate."""
        places = itertools.product(range(self.replicate), range(self.shard))
        return tuple(self.rank_of(Coordinate(replicate=r, shard=s)) for r, s in places)

    def coordinate(self, rank: int) -> Coordinate:
        """Where a rank stands."""
        found = []
        for size in reversed(astuple(self)):
            rank, place = divmod(rank, size)
            found.append(place)
        return Coordinate(*reversed(found))

    def rank_of(self, coordinate: Coordinate) -> int:
        """The rank that stands there."""
        rank = 0
        for size, place in zip(astuple(self), coordinate, strict=True):
            rank = rank * size + place
        return rank

    def data_coordinate(self, rank: int) -> int:
        """Which rows a rank computes: the number of its data-parallel coordinate."""
        at = self.coordinate(rank)
        return at.replicate * self.shard + at.shard

    def leader_of(self, rank: int) -> int:
        """The leader of a rank's data-parallel coordinate; it may be that rank."""
        return self.leaders[self.data_coordinate(rank)]

    def in_first_copy(self, rank: int) -> int:
        """The rank that holds the same part of the first copy of the model."""
        return self.rank_of(self.coordinate(rank)._replace(replicate=0))

    def along(self, rank: int, *names: Dimension) -> tuple[int, ...]:
        """The ranks that differ from this one in nothing but some dimensions; it is among them."""
        at = self.coordinate(rank)._asdict()
        ranges = (range(getattr(self, name)) if name in names else (at[name],) for name in at)
        return tuple(self.rank_of(Coordinate(*places)) for places in itertools.product(*ranges))

    def groups(self, *names: Dimension) -> list[tuple[int, ...]]:
        """All ranks, parted into those that `along` finds together, by their first ranks."""
        return sorted({self.along(rank, *names) for rank in range(self.size)})
