"""Boxes: the shard of a tensor that a rank or a file holds, in any number of dimensions.

FSDP shards a weight along its first dimension; tensor parallelism may also shard the second. Of a
fused weight (qkv, gate_up) a tensor-parallel rank has a part of each piece. Checkpoints, loading
and the optimizer use boxes only, so a checkpoint of one layout can be read in any other.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import TypeAlias, TypeVar

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Placement, Replicate
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset

AllGather = Callable[[str, Tensor, torch.dtype], Tensor]
"""Function that all-gathers a named tensor, in its stored dtype; a collective if sharded."""

TensorType = TypeVar("TensorType", bound=Tensor)
Index: TypeAlias = tuple[int, ...]
"""A number per dimension: coordinates of a rank in a mesh, or a shape."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """Pieces of a fused tensor, each of which is divided over the tensor-parallel ranks.

    Ranks hold it in another order than files: first the first rank's part of each piece.
    """

    dimension: int  # along which they are concatenated
    sizes: tuple[int, ...]  # of the pieces there; divisible by the ranks
    ranks: int

    def runs(self) -> Iterator[tuple[int, int, int]]:
        """Yield start in the order of ranks, start in the tensor, and length of each run."""
        place = 0
        for rank in range(self.ranks):
            first = 0
            for size in self.sizes:
                length = size // self.ranks
                yield place, first + rank * length, length
                place += length
                first += size


class Box(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of a tensor: a range of indices in each of its dimensions."""

    shape: tuple[int, ...]  # of the unsharded tensor; () for a scalar
    start: tuple[int, ...]  # (dimensions,) the first index of each range
    stop: tuple[int, ...]  # (dimensions,) the end of each range
    pieces: Pieces | None = None
    """Indices count in the order of ranks; None: as in the tensor, and the box is plain."""

    @classmethod
    def whole(cls, shape: tuple[int, ...]) -> "Box":
        """Return the box of a whole tensor."""
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
        """Return the slices of a plain box in the whole tensor."""
        return tuple(map(slice, self.start, self.stop))

    def plain(self) -> "list[tuple[Box, tuple[slice, ...]]]":
        """Return the plain boxes that it consists of, each with its slices in this part."""
        everything = (slice(None),) * len(self.shape)
        if self.pieces is None:
            return [(self, everything)]
        found, dim = [], self.pieces.dimension
        for place, origin, length in self.pieces.runs():
            first, last = max(self.start[dim], place), min(self.stop[dim], place + length)
            if first < last:
                shift = origin - place
                start = (*self.start[:dim], first + shift, *self.start[dim + 1 :])
                stop = (*self.stop[:dim], last + shift, *self.stop[dim + 1 :])
                own = slice(first - self.start[dim], last - self.start[dim])
                found.append((Box(self.shape, start, stop), (*everything[:dim], own)))
        return found or [(Box(self.shape, self.start, self.stop), everything)]  # empty

    def assemble(self, part: "Callable[[Box], Tensor]") -> Tensor:
        """Assemble this part from those of its plain boxes."""
        parts = [part(box) for box, _ in self.plain()]
        return torch.cat(parts, self.pieces.dimension) if self.pieces else parts[0]

    def of(self, values: Tensor) -> Tensor:
        """Cut this part out of a whole tensor."""
        return self.assemble(lambda box: values[box.slices])

    def intersect(self, other: "Box") -> "Box | None":
        """Return the intersection of two plain boxes; None if empty."""
        start = tuple(map(max, self.start, other.start))
        stop = tuple(map(min, self.stop, other.stop))
        is_empty = any(low >= high for low, high in zip(start, stop, strict=True))
        return None if is_empty else Box(self.shape, start, stop)

    def slices_in(self, outer: "Box") -> tuple[slice, ...]:
        """Return the slices of this part in a larger one."""
        return tuple(
            slice(start - origin, stop - origin)
            for start, stop, origin in zip(self.start, self.stop, outer.start, strict=True)
        )


def box_of(tensor: Tensor) -> Box:
    """Return this rank's box of a tensor of a model or its optimizer."""
    if not isinstance(tensor, DTensor):
        return Box.whole(tuple(tensor.shape))
    return _box_at(tensor, _coordinate(tensor))


def _coordinate(tensor: DTensor) -> Index:
    coordinate = tensor.device_mesh.get_coordinate()
    assert coordinate is not None, "only ranks of its mesh have a part"
    return tuple(coordinate)


def _box_at(tensor: DTensor, coordinate: Index) -> Box:
    shape, mesh = tuple(tensor.shape), tuple(tensor.device_mesh.shape)
    box = _plain_box(shape, mesh, tensor.placements, coordinate)
    pieces = getattr(tensor, "pieces", None)
    return Box(box.shape, box.start, box.stop, pieces) if pieces else box


@cache  # torch lists all indices of a large dimension
def _plain_box(
    shape: Index, mesh: Index, placements: tuple[Placement, ...], coordinate: Index
) -> Box:
    local, start = _compute_local_shape_and_global_offset(shape, mesh, list(coordinate), placements)
    return Box(shape, start, tuple(at + size for at, size in zip(start, local, strict=True)))


def is_first_holder(tensor: Tensor) -> bool:
    """Whether this is the first rank with this shard, so that sums count it only here."""
    if not isinstance(tensor, DTensor):
        return True
    mesh = tensor.device_mesh
    return all(
        mesh.get_local_rank(dimension) == 0
        for dimension, placement in enumerate(tensor.placements)
        if isinstance(placement, Replicate)
    )


def is_first_rank(tensor: Tensor) -> bool:
    """Whether this is the first of the ranks over which a tensor is distributed."""
    return not isinstance(tensor, DTensor) or not any(_coordinate(tensor))


def broadcast_(values: Tensor, tensor: Tensor) -> None:
    """Broadcast values in place from the first of the ranks over which a tensor is distributed."""
    if isinstance(tensor, DTensor):
        for dimension in reversed(range(tensor.device_mesh.ndim)):
            dist.broadcast(values, group=tensor.device_mesh.get_group(dimension), group_src=0)


def local_part(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a tensor; all of it if it is not sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def full_tensor(tensor: Tensor) -> Tensor:
    """All-gather a tensor, without gradient; a collective if it is sharded.

    One mesh dimension after the other, each with an all-gather. Not by `DTensor.full_tensor`: its
    functional all-gather crashes once in some hundred worlds over gloo (torch 2.13).
    """
    if not isinstance(tensor, DTensor):
        return tensor
    local = tensor.to_local().detach()
    parts = {_coordinate(tensor): local}
    for dimension, placement in enumerate(tensor.placements):
        if not isinstance(placement, Replicate):
            parts = _all_gather(tensor, parts, dimension)
    if len(parts) == 1:
        return local
    result = local.new_empty(tensor.shape)
    for at, part in parts.items():
        for box, own in _box_at(tensor, at).plain():
            result[box.slices] = part[own]
    return result


def _all_gather(tensor: DTensor, parts: dict[Index, Tensor], dimension: int) -> dict[Index, Tensor]:
    """All-gather along a mesh dimension; returns the parts by coordinates."""
    mesh = tensor.device_mesh
    ranks = [
        [(*at[:dimension], rank, *at[dimension + 1 :]) for at in parts]
        for rank in range(mesh.size(dimension))
    ]
    sizes = [[_box_at(tensor, at).numel for at in held] for held in ranks]
    most = max(map(sum, sizes))
    mine = torch.cat([part.reshape(-1) for part in parts.values()])
    mine = torch.nn.functional.pad(mine, (0, most - mine.numel()))
    received = mine.new_empty(len(ranks), most)
    dist.all_gather(list(received.unbind()), mine, group=mesh.get_group(dimension))
    return {
        at: part.view(_box_at(tensor, at).local_shape)
        for held, size, row in zip(ranks, sizes, received, strict=True)
        for at, part in zip(held, row[: sum(size)].split(size), strict=True)
    }


def shard_like(tensor: Tensor, part: Tensor) -> Tensor:
    """Make a DTensor, sharded as `tensor`, from each rank's shard.

    The shard is (`box_of(tensor).local_shape`), on the same device; not copied.
    """
    if not isinstance(tensor, DTensor):
        return part
    made = DTensor.from_local(
        part,
        tensor.device_mesh,
        tensor.placements,
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )
    return copy_pieces(tensor, made)


def copy_pieces(tensor: Tensor, made: TensorType) -> TensorType:
    """Copy the `pieces` of a tensor to one made from it by torch and sharded alike; return that."""
    if (pieces := getattr(tensor, "pieces", None)) is not None:
        made.pieces = pieces  # type: ignore[attr-defined]
    return made


def detached(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Detach a tensor, and cast it if a dtype is given."""
    return copy_pieces(tensor, tensor.detach().to(dtype or tensor.dtype))
