"""Boxes: which part of a tensor a rank or a file holds, in any number of dimensions.

A weight that is cut by FSDP is a run of its first dimension, one that is cut by tensor parallelism
too may be a run of its second. Of a weight that is several matrices, one behind another, a tensor
rank has a part of each. Checkpoints, loading and the optimizer speak of boxes alone, so that any
layout reads what another one wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any, TypeAlias, TypeVar

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Placement, Replicate
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset

Join = Callable[[str, Tensor, torch.dtype], Tensor]
"""Puts a named tensor together, in the type that it is stored in; a collective where it is cut."""

Made = TypeVar("Made", bound=Tensor)
At: TypeAlias = tuple[int, ...]
"""A number for each dimension: coordinates of a rank in a mesh, or a shape."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """Of a tensor that is several, one behind another, of each of which every rank has a part.

    Ranks hold it in another order than files: first what the first rank has of each piece.
    """

    dimension: int  # along which they lie
    sizes: tuple[int, ...]  # of the pieces there; the ranks divide each
    ranks: int

    def runs(self) -> Iterator[tuple[int, int, int]]:
        """Where a run begins in the order of ranks, where in the tensor, and how long it is."""
        place = 0
        for rank in range(self.ranks):
            first = 0
            for size in self.sizes:
                length = size // self.ranks
                yield place, first + rank * length, length
                place, first = place + length, first + size


class Box(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of a tensor: a range of indices in each of its dimensions."""

    shape: tuple[int, ...]  # of the whole tensor; () for a scalar
    start: tuple[int, ...]  # (dimensions,) the first index of each range
    stop: tuple[int, ...]  # (dimensions,) the index behind the last
    pieces: Pieces | None = None
    """Indices count in the order of ranks; absent: as in the tensor, and the box is plain."""

    @classmethod
    def whole(cls, shape: tuple[int, ...]) -> Box:
        """All of a tensor."""
        return cls(shape, (0,) * len(shape), shape)

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Shape of the part."""
        return tuple(stop - start for start, stop in zip(self.start, self.stop, strict=True))

    @property
    def numel(self) -> int:
        """Elements of the part."""
        return prod(self.local_shape)

    @property
    def slices(self) -> tuple[slice, ...]:
        """What cuts the part of a plain box out of the whole tensor."""
        return tuple(map(slice, self.start, self.stop))

    def plain(self) -> list[tuple[Box, tuple[slice, ...]]]:
        """The plain boxes that it is made of, each with what cuts it out of this part."""
        every = (slice(None),) * len(self.shape)
        if self.pieces is None:
            return [(self, every)]
        found, at = [], self.pieces.dimension
        for place, origin, length in self.pieces.runs():
            first, last = max(self.start[at], place), min(self.stop[at], place + length)
            if first < last:
                by = origin - place
                start = (*self.start[:at], first + by, *self.start[at + 1 :])
                stop = (*self.stop[:at], last + by, *self.stop[at + 1 :])
                own = slice(first - self.start[at], last - self.start[at])
                found.append((Box(self.shape, start, stop), (*every[:at], own)))
        return found or [(Box(self.shape, self.start, self.stop), every)]  # of nothing

    def joined(self, part: Callable[[Box], Tensor]) -> Tensor:
        """This part, out of those of the plain boxes that it is made of."""
        parts = [part(box) for box, _ in self.plain()]
        return torch.cat(parts, self.pieces.dimension) if self.pieces else parts[0]

    def of(self, values: Tensor) -> Tensor:
        """This part of a whole tensor."""
        return self.joined(lambda box: values[box.slices])

    def intersect(self, other: Box) -> Box | None:
        """What two plain ones hold of a tensor; None where that is nothing."""
        start = tuple(map(max, self.start, other.start))
        stop = tuple(map(min, self.stop, other.stop))
        is_empty = any(low >= high for low, high in zip(start, stop, strict=True))
        return None if is_empty else Box(self.shape, start, stop)

    def seen_from(self, outer: Box) -> tuple[slice, ...]:
        """What cuts this part out of the tensor of a larger one."""
        return tuple(
            slice(start - origin, stop - origin)
            for start, stop, origin in zip(self.start, self.stop, outer.start, strict=True)
        )


def box_of(tensor: Tensor) -> Box:
    """What this rank holds of a tensor of a model or its optimizer."""
    if not isinstance(tensor, DTensor):
        return Box.whole(tuple(tensor.shape))
    coordinate = tensor.device_mesh.get_coordinate()
    assert coordinate is not None, "only ranks of its mesh have a part"
    return _box_at(tensor, coordinate)


def _box_at(tensor: DTensor, coordinate: Sequence[int]) -> Box:
    """What the rank at a coordinate of the mesh holds."""
    shape, mesh = tuple(tensor.shape), tuple(tensor.device_mesh.shape)
    box = _cut_box(shape, mesh, tensor.placements, tuple(coordinate))
    pieces = getattr(tensor, "pieces", None)
    return Box(box.shape, box.start, box.stop, pieces) if pieces else box


@cache  # of a large dimension torch writes all indices down
def _cut_box(shape: At, mesh: At, placements: tuple[Placement, ...], coordinate: At) -> Box:
    local, start = _compute_local_shape_and_global_offset(shape, mesh, list(coordinate), placements)
    return Box(shape, start, tuple(at + size for at, size in zip(start, local, strict=True)))


def is_first_holder(tensor: Tensor) -> bool:
    """Whether no rank before this one holds the same part, so that sums may count it here.

    Of a tensor that is not cut every rank is taken for the only one.
    """
    if not isinstance(tensor, DTensor):
        return True
    mesh = tensor.device_mesh
    return all(
        mesh.get_local_rank(dimension) == 0
        for dimension, placement in enumerate(tensor.placements)
        if isinstance(placement, Replicate)
    )


def local_part(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor; all of it where it is not cut."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """A tensor put together, without a gradient; a collective where it is cut.

    One dimension of the mesh after the other, each with a gather of what its ranks have by then.
    Not by `DTensor.redistribute`: its functional all-gather crashes once in some hundred worlds
    over gloo (torch 2.13).
    """
    if not isinstance(tensor, DTensor):
        return tensor
    coordinate = tensor.device_mesh.get_coordinate()
    assert coordinate is not None, "only ranks of its mesh have a part"
    local = tensor.to_local().detach()
    parts = {tuple(coordinate): local}
    for dimension, placement in enumerate(tensor.placements):
        if not isinstance(placement, Replicate):
            parts = _gathered(tensor, parts, dimension)
    if len(parts) == 1:
        return local
    result = local.new_empty(tensor.shape)
    for at, part in parts.items():
        for box, own in _box_at(tensor, at).plain():
            result[box.slices] = part[own]
    return result


def _gathered(tensor: DTensor, parts: dict[At, Tensor], dimension: int) -> dict[At, Tensor]:
    """The parts of all ranks along a dimension of the mesh, by coordinates; each has as many."""
    mesh = tensor.device_mesh
    ranks = [
        [(*at[:dimension], rank, *at[dimension + 1 :]) for at in parts]
        for rank in range(mesh.size(dimension))
    ]
    sizes = [[_box_at(tensor, at).numel for at in held] for held in ranks]
    most = max(map(sum, sizes))
    mine = torch.cat([part.reshape(-1) for part in parts.values()])
    mine = torch.nn.functional.pad(mine, (0, most - mine.numel()))
    told = mine.new_empty(len(ranks), most)
    dist.all_gather(list(told.unbind()), mine, group=mesh.get_group(dimension))
    return {
        at: part.view(_box_at(tensor, at).local_shape)
        for held, size, row in zip(ranks, sizes, told, strict=True)
        for at, part in zip(held, row[: sum(size)].split(size), strict=True)
    }


def cut_like(tensor: Tensor, part: Tensor) -> Tensor:
    """A tensor of which every rank gives its part, cut as one of a model is.

    The part is (`box_of(tensor).local_shape`), on the same device; taken over, not copied.
    """
    if not isinstance(tensor, DTensor):
        return part
    cut = DTensor.from_local(
        part,
        tensor.device_mesh,
        tensor.placements,
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )
    return laid_as(tensor, cut)


def laid_as(tensor: Tensor, made: Made) -> Made:
    """What torch made of a tensor, which is cut alike but has forgotten its pieces."""
    if (pieces := getattr(tensor, "pieces", None)) is not None:
        of_made: Any = made
        of_made.pieces = pieces
    return made


def detached(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A tensor without what its gradient needs, in another type where one is given."""
    return laid_as(tensor, tensor.detach().to(dtype or tensor.dtype))
