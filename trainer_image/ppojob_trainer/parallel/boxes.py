"""Boxes: which part of a tensor a rank or a file holds, in any number of dimensions.

A weight that is cut by FSDP is a run of its first dimension, one that is cut by tensor parallelism
too may be a run of its second. Checkpoints, loading and the optimizer speak of boxes alone, so that
any layout reads what another one wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

Join = Callable[[str, Tensor, torch.dtype], Tensor]
"""Puts a named tensor together, in the type that it is stored in; a collective where it is cut."""


@dataclass(frozen=True, slots=True)
class Box:
    """A part of a tensor: a range of indices in each of its dimensions."""

    shape: tuple[int, ...]  # of the whole tensor; () for a scalar
    start: tuple[int, ...]  # (dimensions,) the first index of each range
    stop: tuple[int, ...]  # (dimensions,) the index behind the last

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
        """What cuts the part out of the whole tensor."""
        return tuple(map(slice, self.start, self.stop))

    def intersect(self, other: Box) -> Box | None:
        """What both hold of a tensor; None where that is nothing."""
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
    shape = tuple(tensor.shape)
    if not isinstance(tensor, DTensor):
        return Box.whole(shape)
    local, start = compute_local_shape_and_global_offset(
        shape, tensor.device_mesh, tensor.placements
    )
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
    """A tensor put together; a collective where it is cut."""
    if not isinstance(tensor, DTensor):
        return tensor
    placements = list(tensor.placements)
    # By one dimension of the mesh after the other: of a part that was cut twice along the same
    # dimension torch's `full_tensor` does the same, with a warning.
    for dimension in range(len(placements)):
        placements[dimension] = Replicate()
        tensor = tensor.redistribute(placements=placements)
    return tensor.to_local()


def cut_like(tensor: Tensor, part: Tensor) -> Tensor:
    """A tensor of which every rank gives its part, cut as one of a model is.

    The part is (`box_of(tensor).local_shape`), on the same device; taken over, not copied.
    """
    if not isinstance(tensor, DTensor):
        return part
    return DTensor.from_local(
        part,
        tensor.device_mesh,
        tensor.placements,
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )
