"""Which layers of a model of transformers keep a state in place of keys and values."""

from collections.abc import Iterator
from typing import Any

from torch import nn

from ppojob_trainer.models.families import FAMILIES


def layers_with_states(model: nn.Module) -> Iterator[tuple[nn.Module, nn.Module]]:
    """Such layers of a model, or of a stage of it, and what in them keeps the state."""
    base: Any = getattr(model, "base_model", model)
    kind = FAMILIES[base.config.model_type].recurrence
    if kind is None:
        return
    for layer in base.layers:
        net: nn.Module | None = getattr(layer, kind.net, None)
        # Under the same name other layers of the model may have attention or a feed-forward block.
        if net is not None and any(isinstance(one, nn.Conv1d) for one in net.children()):
            yield layer, net
