"""FSDP2: weights, gradients and moments of a model sharded over the ranks of a world.

Every weight, or its tensor-parallel shard, is sharded along its first dimension over `HOLDERS`, and
a layer's weights are all-gathered while it computes. With HSDP each replica is sharded so, and
gradients are reduced within a replica, then over replicas. They are summed, never averaged: losses
are already divided by the counts of all ranks. The model of a world of one is not changed.

With expert parallelism a layer's experts are separate FSDP modules, all-gathered only by the ranks
with shards of the same experts.
"""

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
"""Dimensions over which a model is distributed; there is always a group of shards."""


def fill(tensor: Tensor, values: Tensor) -> None:
    """Copy this rank's shard of `values`, equal on all ranks, into a tensor of a model."""
    with torch.no_grad():
        local_part(tensor).copy_(box_of(tensor).of(values))


def shard_model(
    model: nn.Module, world: World, styles: Mapping[str, Style], experts: Sequence[nn.Module]
) -> None:
    """Shard a transformers model over several ranks, layer by layer.

    It may be on the meta device. With tensor parallelism its layers are first sharded by their
    styles, which are by module name. `experts` are those of each layer, without a style under
    expert parallelism; parameters of their own, not of submodules, are stacks of all of them.
    """
    groups = {name: world.along(*of) for name, of in _MESH.items()}
    pieces: dict[str, Pieces] = {}
    mesh = _mesh(world, groups)
    if world.dims.tensor > 1:
        *data, tensor = mesh.mesh_dim_names or ()
        pieces = cut_layers(model, styles, mesh[tensor])
        mesh = mesh[tuple(data)]
    layers = (layer for layer in decoder_layers(model) if any(True for _ in layer.parameters()))
    meshes = dict.fromkeys((*layers, model), mesh)
    if world.dims.expert > 1:
        meshes = dict.fromkeys(experts, _shard_experts(world, experts)) | meshes
    for module, ranks in meshes.items():
        fully_shard(module, mesh=ranks)
        # Gloo has no reduction with premultiplication.
        module.set_force_sum_reduction_for_comms(True)
        module.set_gradient_divide_factor(1.0)
    parameters: dict[str, Any] = dict(model.named_parameters())
    for name, own in pieces.items():
        parameters[name].pieces = own
    setattr(model, _ROOT_METHOD, MethodType(lambda _, compute: compute(), model))
    register_fsdp_forward_method(model, _ROOT_METHOD)


def decoder_layers(model: nn.Module) -> Iterator[Any]:
    """Return the decoder layers of a transformers model; for MiMo the MTP layer too."""
    base: Any = getattr(model, "base_model", model)
    yield from (*base.layers, *getattr(base, "mtp_layers", ()))


def as_forward(model: nn.Module, compute: Callable[[], Result]) -> Result:
    """Run a computation as the model's forward pass; a collective if the model is sharded.

    Weights outside of the layers (embedding, final norm, head) are unsharded while it runs, and
    those of a layer while that is called.
    """
    if not isinstance(model, FSDPModule):
        return compute()
    result: Result = getattr(model, _ROOT_METHOD)(compute)
    return result


def keep_unsharded(model: nn.Module) -> None:
    """Keep a layer's weights unsharded from its forward to its backward pass."""
    if isinstance(model, FSDPModule):
        model.set_reshard_after_forward(False)


def release(model: nn.Module) -> None:
    """Reshard weights that were kept unsharded for a backward pass that is skipped."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def reduce_gradients(model: nn.Module, *, is_last: bool) -> None:
    """Set whether the next backward pass is the mini-batch's last, after which ranks reduce."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(is_last)


def _shard_experts(world: World, experts: Sequence[nn.Module]) -> DeviceMesh:
    """Shard expert stacks over the expert-parallel ranks, and set their FSDP groups."""
    groups = {"replicate": world.along("replicate"), "shard": world.expert_shards}
    mesh = _mesh(world, {**groups, "expert": world.experts})
    *data, expert = mesh.mesh_dim_names or ()
    for layer in experts:
        for name, stack in list(layer.named_parameters(recurse=False)):
            part = distribute_tensor(stack.detach(), mesh[expert], [Shard(0)], src_data_rank=None)
            setattr(layer, name, nn.Parameter(part, requires_grad=stack.requires_grad))
    return mesh[tuple(data)]


def _mesh(world: World, groups: Mapping[str, dist.ProcessGroup | None]) -> DeviceMesh:
    """Return the mesh of the ranks that hold a model, the slowest dimension first."""
    found = {name: group for name, group in groups.items() if group is not None}
    ranks = torch.tensor(world.dims.along(world.rank, "replicate", *HOLDERS, "tensor"))
    return DeviceMesh.from_group(
        list(found.values()),
        world.device.type,
        mesh=ranks.view([group.size() for group in found.values()]),
        mesh_dim_names=tuple(found),
    )
