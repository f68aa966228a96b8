"""Fused RMSNorm of layers on GPUs: one kernel per direction, in the dtype of the products.

transformers' own is half a dozen passes over the states forward and a dozen backward, and under
autocast each product casts the same states again.
"""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

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
    device = states.device.type
    if torch.is_autocast_enabled(device):
        return output.to(torch.get_autocast_dtype(device))
    return output
