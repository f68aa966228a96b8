"""Nemotron-H adaptation: time steps without clamping."""

from typing import Any, Final

from transformers import PreTrainedModel

NEMOTRON: Final = "nemotron_h"


def take_limits_off(model: PreTrainedModel) -> None:
    """Remove the clamp of Mamba's time steps, as config.json's weights need.

    transformers clamps steps to at least `time_step_min` in prefill, but not in decoding. The
    weights were trained without a clamp, and vLLM has none.
    """
    base: Any = model.base_model
    for layer in base.layers:
        if hasattr(layer.mixer, "time_step_limit"):
            layer.mixer.time_step_limit = (0.0, float("inf"))
