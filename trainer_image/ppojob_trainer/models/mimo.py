"""MiMo-7B, which transformers lacks: Qwen2 under another name.

Its MTP layer is one of `mtp_layers`.
"""

from transformers import AutoConfig, AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM


class MiMoConfig(Qwen2Config):  # type: ignore[misc]
    """MiMo's configuration."""

    model_type = "mimo"


class MiMoForCausalLM(Qwen2ForCausalLM):  # type: ignore[misc]
    """MiMo without its MTP layer."""

    config_class = MiMoConfig


AutoConfig.register(MiMoConfig.model_type, MiMoConfig, exist_ok=True)
AutoModelForCausalLM.register(MiMoConfig, MiMoForCausalLM, exist_ok=True)
