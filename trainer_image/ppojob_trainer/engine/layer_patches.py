"""Replaced forward passes of layers: fused RMSNorm on GPUs, and tiled MLPs."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from ppojob_trainer.models.adapter_dropout import checkpoint_contexts
from ppojob_trainer.models.experts import product_dtype
from ppojob_trainer.models.families import FAMILIES
from ppojob_trainer.parallel.fsdp import decoder_layers
from ppojob_trainer.parallel.tensor_styles import TensorLayer


def use_fused_norms(model: PreTrainedModel) -> None:
    """Fuse the norms in front of a model's matrices, if it is on a GPU.

    QK-norms and the final norm keep the dtype of their input: what follows them computes in it.
    """
    if model.device.type == "cuda":
        for norm in fusible(model):
            norm.forward = partial(normalised, norm)


def fusible(model: PreTrainedModel) -> Iterator[nn.Module]:
    """Return the norms that can be fused: unsharded ones, as tensor ranks must reduce gradients."""
    family = FAMILIES[model.config.model_type]
    if family.norm_type:
        return
    for layer in decoder_layers(model):
        found = (getattr(layer, name, None) for name in family.norms)
        # Of a layer at another pipeline stage there are none.
        yield from (one for one in found if one is not None and not isinstance(one, TensorLayer))


def normalised(norm: nn.Module, states: Tensor) -> Tensor:
    """Apply the RMSNorm (Zhang and Sennrich 2019, arXiv:1910.07467) of a transformers module."""
    weight, epsilon = norm.weight, getattr(norm, "variance_epsilon", None) or norm.eps  # Gemma's
    assert isinstance(weight, Tensor)
    assert isinstance(epsilon, float)
    output = F.rms_norm(states, weight.shape, weight, epsilon)
    return output.to(product_dtype(output))


def use_tiles(model: PreTrainedModel, tokens: int) -> None:
    """Compute the dense feed-forward blocks of a model `tokens` at a time; 0 for all at once."""
    if tokens:
        for block in tiled(model):
            block.forward = partial(_in_tiles, block, tokens)


def tiled(model: PreTrainedModel) -> Iterator[nn.Module]:
    """Return the blocks of a model to tile: dense MLPs that are modules, no MoE blocks."""
    block, _, out = FAMILIES[model.config.model_type].dense_out.rpartition(".")
    for layer in decoder_layers(model):
        found = getattr(layer, block, None) if block else None
        # In other layers the same name may be an MoE block, attention or absent.
        if found is not None and hasattr(found, out):
            yield found


def _in_tiles(block: nn.Module, tokens: int, states: Tensor) -> Tensor:
    """Apply the block's own forward, (1, t, h) to (1, t, h), tile by tile."""
    whole = partial(type(block).forward, block)
    found = []
    for number, tile in enumerate(states.split(tokens, dim=1)):  # type: ignore[no-untyped-call]
        own = partial(checkpoint_contexts, slice(number * tokens, (number + 1) * tokens))
        found.append(checkpoint(whole, tile, use_reentrant=False, context_fn=own))
    return torch.cat(found, dim=1)
