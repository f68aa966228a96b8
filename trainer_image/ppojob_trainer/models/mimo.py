"""MiMo-7B, which transformers has no class of: Qwen2 by another name.

Its layer that predicts further tokens is one of `mtp_layers`.
"""

from transformers import AutoConfig, AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM


class MiMoConfig(Qwen2Config):  # type: ignore[misc]
    """Its configuration."""

    model_type = "mimo"


class MiMoForCausalLM(Qwen2ForCausalLM):  # type: ignore[misc]
    """The model without that layer."""

    config_class = MiMoConfig


AutoConfig.register(MiMoConfig.model_type, MiMoConfig, exist_ok=True)
AutoModelForCausalLM.register(MiMoConfig, MiMoForCausalLM, exist_ok=True)
