"""A model's weights, gradients and moments cut over the ranks of a world (FSDP2).

Every weight, or a tensor rank's part of it, is cut along its first dimension into equal runs, one
for each rank of `HOLDERS`, and a layer's are put together just while it computes. Where the layout
has copies of the model, each is cut so, and gradients are added up within a copy and then over
copies. They are added up, never averaged: losses have been divided by the counts of all ranks. A
model of a world of one stays a plain module, and everything here leaves it alone.

Where ranks share the experts of a layer, these are modules of their own, which only the ranks with
parts of the same experts put together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MethodType
from typing import Any, Final, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import Shard, distribute_tensor

from ppojob_trainer.parallel.boxes import Pieces, box_of, local_part
from ppojob_trainer.parallel.dims import HOLDERS, Dimension
from ppojob_trainer.parallel.tensor_styles import Style, cut_layers
from ppojob_trainer.parallel.world import World

Result = TypeVar("Result")

_ROOT_METHOD = "_compute_as_forward"
_MESH: Final[Mapping[str, tuple[Dimension, ...]]] = {
    "replicate": ("replicate",),
    "shard": HOLDERS,
    "tensor": ("tensor",),
}
"""Ranks that hold a model; of shards there is always a group."""


def fill(tensor: Tensor, values: Tensor) -> None:
    """Copy this rank's part of `values`, the same on every rank, into a tensor of a model."""
    with torch.no_grad():
        local_part(tensor).copy_(box_of(tensor).of(values))


def shard_model(
    model: nn.Module, world: World, styles: Mapping[str, Style], experts: Sequence[nn.Module]
) -> None:
    """Cut a model of transformers over the ranks, which are several, layer by layer.

    Where it is on the meta device it has no weights yet. Where there are tensor ranks its layers
    are cut over those by their styles, which are by names of modules. `experts` are those of each
    layer, with no style where ranks share them; what parameters these have themselves, beside their
    modules', are stacks of all of them.
    """
    groups = {name: world.along(*of) for name, of in _MESH.items()}
    pieces: dict[str, Pieces] = {}
    mesh = _mesh(world, groups)
    if world.dims.tensor > 1:
        *data, tensor = mesh.mesh_dim_names or ()
        pieces = cut_layers(model, styles, mesh[tensor])
        mesh = mesh[tuple(data)]
    held = (layer for layer in decoder_layers(model) if any(True for _ in layer.parameters()))
    meshes = dict.fromkeys((*held, model), mesh)
    if world.dims.expert > 1:
        meshes = dict.fromkeys(experts, _deal_experts(world, experts)) | meshes
    for module, ranks in meshes.items():
        fully_shard(module, mesh=ranks)
        # Without the first, gloo is asked for a multiplication that it does not know.
        module.set_force_sum_reduction_for_comms(True)
        module.set_gradient_divide_factor(1.0)
    parameters: dict[str, Any] = dict(model.named_parameters())
    for name, own in pieces.items():
        parameters[name].pieces = own
    setattr(model, _ROOT_METHOD, MethodType(lambda _, compute: compute(), model))
    register_fsdp_forward_method(model, _ROOT_METHOD)


def decoder_layers(model: nn.Module) -> Iterator[Any]:
    """The layers of a model of transformers; of MiMo too what predicts further tokens."""
    base: Any = getattr(model, "base_model", model)
    yield from (*base.layers, *getattr(base, "mtp_layers", ()))


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


def _deal_experts(world: World, experts: Sequence[nn.Module]) -> DeviceMesh:
    """Cut stacks of experts over the ranks that share them, and say who has parts of the same."""
    groups = {"replicate": world.along("replicate"), "shard": world.expert_shards}
    mesh = _mesh(world, {**groups, "expert": world.experts})
    *data, expert = mesh.mesh_dim_names or ()
    for layer in experts:
        for name, stack in list(layer.named_parameters(recurse=False)):
            part = distribute_tensor(stack.detach(), mesh[expert], [Shard(0)], src_data_rank=None)
            setattr(layer, name, nn.Parameter(part, requires_grad=stack.requires_grad))
    return mesh[tuple(data)]


def _mesh(world: World, groups: Mapping[str, dist.ProcessGroup | None]) -> DeviceMesh:
    """The ranks that hold a model, by the dimensions in which they differ, the slowest first."""
    found = {name: group for name, group in groups.items() if group is not None}
    ranks = torch.tensor(world.dims.along(world.rank, "replicate", *HOLDERS, "tensor"))
    return DeviceMesh.from_group(
        list(found.values()),
        world.device.type,
        mesh=ranks.view([group.size() for group in found.values()]),
        mesh_dim_names=tuple(found),
    )
