"""Nemotron-H of transformers as other models are: steps without a limit."""

from typing import Any, Final

from transformers import PreTrainedModel

NEMOTRON: Final = "nemotron_h"


def take_limits_off(model: PreTrainedModel) -> None:
    """Let steps be as config.json has them.

    transformers lets no step be shorter than `time_step_min` where it reads several tokens, and any
    where it reads one. Its weights were trained without that, and vLLM has none.
    """
    base: Any = model.base_model
    for layer in base.layers:
        if hasattr(layer.mixer, "time_step_limit"):
            layer.mixer.time_step_limit = (0.0, float("inf"))
