"""Nemotron-H of transformers as other models are: names of modules, and steps without a limit."""

from typing import Any, Final

from torch import nn
from transformers import PreTrainedModel

NEMOTRON: Final = "nemotron_h"
_OWN: Final = {"embeddings": "embed_tokens", "norm_f": "norm"}
"""Names of the modules around the layers, and those that all other models have."""


class _Renamed:
    """A decoder whose own code finds modules under their old names."""

    embed_tokens: nn.Module
    norm: nn.Module

    @property
    def embeddings(self) -> nn.Module:
        """The embedding."""
        return self.embed_tokens

    @property
    def norm_f(self) -> nn.Module:
        """The last norm."""
        return self.norm


def as_others(model: PreTrainedModel) -> None:
    """Rename the modules around the layers, and let steps be as config.json has them.

    transformers lets no step be shorter than `time_step_min` where it reads several tokens, and any
    where it reads one. Its weights were trained without that, and vLLM has none.
    """
    base: Any = model.base_model
    if isinstance(base, _Renamed):
        return
    base._modules = {_OWN.get(name, name): module for name, module in base._modules.items()}
    kind = type(base)
    base.__class__ = type(kind.__name__, (_Renamed, kind), {})
    for layer in base.layers:
        if hasattr(layer.mixer, "time_step_limit"):
            layer.mixer.time_step_limit = (0.0, float("inf"))
