"""Tensors of a model by their Hugging Face names, and their collection from all ranks."""

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn

from ppojob_trainer.models.adapter_names import is_adapter
from ppojob_trainer.models.log_partition import is_log_partition
from ppojob_trainer.models.lora import Adapter, adapters_of
from ppojob_trainer.models.mtp_layers import is_of_mtp_layer
from ppojob_trainer.models.nf4 import is_scales, nf4_layers
from ppojob_trainer.models.pipeline_stages import outline_of, stage_of
from ppojob_trainer.parallel.boxes import AllGather, detached, full_tensor, local_part


def hf_named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield every weight once, detached, in the model's order; sharded where the model is.

    For a pipeline stage its own. A tied weight comes under its first name only (the embedding's),
    as in safetensors folders. Non-persistent buffers (RoPE frequencies), adapters and the network
    of log Z are left out. An NF4 matrix is yielded as a meta tensor, which `plain_weights`
    dequantizes.
    """
    quantised = nf4_layers(model)
    for name, parameter in model.named_parameters(remove_duplicate=True):
        if name in quantised:
            yield name, quantised[name].outline
        elif not is_adapter(name) and not is_log_partition(name) and not is_scales(name):
            yield name, detached(parameter)


def trained_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint: every weight, or with LoRA the trained ones.

    Those are the adapters, and a critic's head. The network of log Z is included in both cases.
    Detached, under their own names; sharded where the model is.
    """
    has_all = not adapters_of(model)
    named = model.named_parameters()
    return {name: detached(weight) for name, weight in named if has_all or weight.requires_grad}


def every_tensor(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """As `hf_named_tensors`, with meta tensors for those of other stages."""
    held = dict(hf_named_tensors(model))
    for name, tensor in hf_named_tensors(outline_of(model)):
        yield name, held.get(name, tensor)


def plain_weights(
    model: nn.Module, on_device: Callable[[Tensor], Tensor]
) -> Callable[[str, Tensor], Tensor]:
    """Return a loader of what `hf_named_tensors` yields; of NF4 a collective if it is sharded."""
    quantised = nf4_layers(model)

    def plain(name: str, tensor: Tensor) -> Tensor:
        return quantised[name].full_matrix(on_device) if name in quantised else on_device(tensor)

    return plain


def every_adapter(model: nn.Module) -> dict[str, Adapter]:
    """As `adapters_of`, with meta tensors for those of other stages."""
    return {**adapters_of(outline_of(model)), **adapters_of(model)}


def broadcast_by_holders(model: nn.Module, join: AllGather) -> AllGather:
    """Return `join`, computed by the first stage that holds a tensor, and broadcast to all stages.

    The same for the ranks of expert parallelism. A collective of all of them, in the order of the
    calls.
    """
    stage, device = stage_of(model), next(model.parameters()).device

    def broadcast(name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        holder, expert_holder = stage.first_holder(name), stage.holder_of_expert(name)
        is_here = holder == stage.ranks.number
        if is_here and expert_holder in {None, stage.expert_ranks.number}:
            made = join(name, tensor, dtype).contiguous()
        else:
            made = torch.empty(tensor.shape, dtype=dtype, device=device)
        if is_here and expert_holder is not None:
            made = stage.expert_ranks.broadcast(made, expert_holder)
        return stage.ranks.broadcast(made, holder)

    return join if stage.outline is None else broadcast


def named_full_tensors(
    model: nn.Module,
    on_device: Callable[[Tensor], Tensor] = lambda tensor: tensor,
    *,
    merges: bool = True,
) -> Iterator[tuple[str, Tensor]]:
    """Yield every weight once, all-gathered one at a time, with its adapter merged.

    Merged weights are float32, whatever the model's dtype. A collective if the model is sharded:
    all ranks must iterate to the end; one tensor is unsharded at a time unless the caller keeps it.
    `on_device` loads an offloaded weight. Without `merges` adapters are ignored. MTP layers are
    left out, as no engine generates with them.
    """
    adapters = every_adapter(model) if merges else {}
    plain = plain_weights(model, on_device)

    def joined(name: str, tensor: Tensor, _dtype: torch.dtype) -> Tensor:
        weight = plain(name, tensor)
        return adapters[name].merged(weight) if name in adapters else full_tensor(weight)

    join = broadcast_by_holders(model, joined)
    for name, tensor in every_tensor(model):
        if not is_of_mtp_layer(name, model):
            yield name, join(name, tensor, torch.float32 if name in adapters else tensor.dtype)


def named_full_adapters(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield every adapter tensor once, all-gathered as in `named_full_tensors`, float32."""
    join = broadcast_by_holders(model, lambda _name, matrix, _dtype: full_tensor(matrix))
    adapters = every_adapter(model)
    for name, _ in every_tensor(model):
        if name in adapters:
            for own, values in adapters[name].named(name).items():
                yield own, join(name, values, torch.float32)


def load_named_tensors(model: nn.Module, parts: Mapping[str, Tensor]) -> None:
    """Copy this rank's shards of `trained_tensors` into a model of any layout, in place."""
    for name, weight in trained_tensors(model).items():
        local_part(weight).copy_(parts[name])
