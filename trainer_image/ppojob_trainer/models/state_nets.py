"""Recurrent layers of a transformers model: their modules."""

from collections.abc import Iterator
from typing import Any

from torch import nn

from ppojob_trainer.models.families import FAMILIES


def layers_with_states(model: nn.Module) -> Iterator[tuple[nn.Module, nn.Module]]:
    """Return the recurrent layers of a model or a stage, and their mixers."""
    base: Any = getattr(model, "base_model", model)
    kind = FAMILIES[base.config.model_type].recurrence
    if kind is None:
        return
    for layer in base.layers:
        net: nn.Module | None = getattr(layer, kind.net, None)
        # In other layers the same name may be attention or a feed-forward block.
        if net is not None and any(isinstance(one, nn.Conv1d) for one in net.children()):
            yield layer, net
