"""MTP layer of a transformers model, under the names of files.

It follows the model's own layers, whose count is unchanged, or is in a separate list. The model's
forward pass skips it; loops over weights include it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ppojob_trainer.models.mtp_forms import MTP_FORMS, MtpForm, is_mtp_weight


class MtpLayer(nn.Module):
    """Mixin that turns a decoder layer of transformers into an MTP layer.

    DeepSeek-V3, arXiv:2412.19437, equations 21 and 22. Embedding and output layer are the model's.
    """

    form: MtpForm

    def forward(self, states: Tensor, embeddings: Tensor, **options: object) -> Tensor:
        """Map (1, t, h) last hidden states and embeddings of the next tokens to (1, t, h).

        The result is the input of the output layer. `options` are those of the other layers.
        """
        normed = [self._part("embedding_norm")(embeddings), self._part("state_norm")(states)]
        if self.form.has_state_first:
            normed.reverse()
        read = self._part("projection")(torch.cat(normed, dim=-1))
        output: Tensor = self._part("last_norm")(super().forward(read, **options))
        return output

    def _part(self, field: str) -> nn.Module:
        return self.get_submodule(getattr(self.form, field))


def add_mtp_layer(model: PreTrainedModel) -> None:
    """Add the layer to an unsharded model; it has no values yet."""
    base, config = model.base_model, model.config
    form, last = MTP_FORMS[config.model_type], base.layers[-1]
    width, epsilon = config.hidden_size, config.rms_norm_eps
    device = base.embed_tokens.weight.device
    with torch.device("meta"):
        # The last layer's index: configurations have no types for layers beyond it.
        layer: Any = type(last)(config, config.num_hidden_layers - 1)
        for name in (form.embedding_norm, form.state_norm, form.last_norm):
            _set(layer, name, type(base.norm)(width, eps=epsilon))
        _set(layer, form.projection, nn.Linear(2 * width, width, bias=False))
    layer.__class__ = type(f"Mtp{type(last).__name__}", (MtpLayer, type(last)), {"form": form})
    layer = layer if device.type == "meta" else layer.to_empty(device=device)
    if not hasattr(base, form.list_name):
        setattr(base, form.list_name, nn.ModuleList())
    getattr(base, form.list_name).append(layer)


def mtp_layer_of(model: nn.Module) -> MtpLayer:
    """Return the MTP layer of a model that has one."""
    base: Any = model.base_model
    config: Any = model.config
    layer: MtpLayer = getattr(base, MTP_FORMS[config.model_type].list_name)[-1]
    return layer


@contextmanager
def states_for_mtp(model: nn.Module) -> Iterator[list[Tensor]]:
    """Capture the (1, t, h) hidden states of the model's pass that the MTP layer reads."""
    base: Any = model.base_model
    states: list[Tensor] = []

    def capture(_norm: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        states.append(args[0] if mtp_layer_of(model).form.is_before_norm else output)

    handle = base.norm.register_forward_hook(capture)
    try:
        yield states
    finally:
        handle.remove()


def is_of_mtp_layer(name: str, model: nn.Module) -> bool:
    """Whether a tensor of this name in a model belongs to an MTP layer."""
    config: Any = model.config
    return is_mtp_weight(name, config.num_hidden_layers)


def _set(module: nn.Module, name: str, part: nn.Module) -> None:
    *inner, last = name.split(".")
    for one in inner:
        setattr(module, one, nn.Module())
        module = module.get_submodule(one)
    setattr(module, last, part)
