"""A model's weights, gradients and moments cut over the ranks of a world (FSDP2).

Every weight, or a tensor rank's part of it, is cut along its first dimension into equal runs, one
for each rank of `HOLDERS`, and a layer's are put together just while it computes. Where the layout
has copies of the model, each is cut so, and gradients are added up within a copy and then over
copies. They are added up, never averaged: losses have been divided by the counts of all ranks. A
model of a world of one stays a plain module, and everything here leaves it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

from ppojob_trainer.parallel.boxes import box_of, local_part
from ppojob_trainer.parallel.dims import HOLDERS, Dimension
from ppojob_trainer.parallel.tensor_styles import Style, cut_layers
from ppojob_trainer.parallel.world import World

Result = TypeVar("Result")

_ROOT_METHOD = "_compute_as_forward"


def fill(tensor: Tensor, values: Tensor) -> None:
    """Copy this rank's part of `values`, the same on every rank, into a tensor of a model."""
    with torch.no_grad():
        local_part(tensor).copy_(values[box_of(tensor).slices])


def shard_model(model: nn.Module, world: World, styles: Mapping[str, Style]) -> None:
    """Cut a model of transformers over the ranks, which are several, layer by layer.

    Where it is on the meta device it has no weights yet. Where there are tensor ranks its layers
    are cut over those by their styles, which are by names of modules.
    """
    mesh = _mesh(world)
    if world.dims.tensor > 1:
        *data, tensor = mesh.mesh_dim_names or ()
        cut_layers(model, styles, mesh[tensor])
        mesh = mesh[tuple(data)]
    base: Any = model.base_model
    held = (layer for layer in base.layers if any(True for _ in layer.parameters()))
    for module in (*held, model):
        fully_shard(module, mesh=mesh)
        # Without the first, gloo is asked for a multiplication that it does not know.
        module.set_force_sum_reduction_for_comms(True)
        module.set_gradient_divide_factor(1.0)
    setattr(model, _ROOT_METHOD, MethodType(lambda _, compute: compute(), model))
    register_fsdp_forward_method(model, _ROOT_METHOD)


def as_forward(model: nn.Module, compute: Callable[[], Result]) -> Result:
    """Run a computation as the model's forward pass.

    Weights outside of the layers (embedding, last norm, head) are whole while it runs, and those of
    a layer while that is called. A collective where the model is cut: all ranks compute equally
    often.
    """
    if not isinstance(model, FSDPModule):
        return compute()
    result: Result = getattr(model, _ROOT_METHOD)(compute)
    return result


def keep_whole(model: nn.Module) -> None:
    """Have a layer's weights stay whole from its forward pass to its backward pass."""
    if isinstance(model, FSDPModule):
        model.set_reshard_after_forward(False)


def release(model: nn.Module) -> None:
    """Give back what is kept whole for a backward pass, where none will come."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def reduce_gradients(model: nn.Module, *, is_last: bool) -> None:
    """Say whether the next backward pass is the mini-batch's last, behind which ranks add up."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(is_last)


def _mesh(world: World) -> DeviceMesh:
    """The ranks that hold a model, by the dimensions in which they differ, and always by shards."""
    names: dict[str, tuple[Dimension, ...]] = {
        "replicate": ("replicate",),
        "shard": HOLDERS,
        "tensor": ("tensor",),
    }
    groups = {name: group for name, of in names.items() if (group := world.along(*of)) is not None}
    ranks = torch.tensor(world.dims.along(world.rank, "replicate", *HOLDERS, "tensor"))
    return DeviceMesh.from_group(
        list(groups.values()),
        world.device.type,
        mesh=ranks.view([group.size() for group in groups.values()]),
        mesh_dim_names=tuple(groups),
    )
