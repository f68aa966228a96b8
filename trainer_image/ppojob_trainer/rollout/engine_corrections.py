"""Corrections for vLLM: settings without which it computes a model differently from transformers.

They apply to the job's engines and to judge servers. Imports no vLLM, since all processes of a
server import it.
"""

from collections.abc import Mapping
from typing import Final

from transformers import PreTrainedConfig

from ppojob_trainer.json_value import Json
from ppojob_trainer.models.config_changes import change
from ppojob_trainer.models.config_files import TEXT_SECTION
from ppojob_trainer.models.families import FAMILIES
from ppojob_trainer.models.mixtures import top_k_of

_OPERATIONS: Final = ("all", "-rms_norm", "-rotary_embedding")
"""For models with latent attention or short convolutions on the CPU.

The excluded kernels read columns of a wider matrix as if contiguous.
"""
_CLASS: Final = "architectures"
_GLM: Final = ["Glm4MoeForCausalLM"]
"""The class that computes dots.llm1 and Solar Open too."""


def operations(config: PreTrainedConfig) -> list[str] | None:
    """Return the CPU kernels (`custom_ops`) for a model; None for all of them."""
    family = FAMILIES.get(config.model_type)
    rule = family and family.recurrence and family.recurrence.rule
    is_misread = _caches_latents(config) or rule == "convolution"
    return list(_OPERATIONS) if is_misread else None


def attention_backend(config: PreTrainedConfig) -> str | None:
    """Return vLLM's attention backend for a model on the CPU; None for its default.

    With AMX the default for latent attention has bfloat16 and the sizes of DeepSeek-V3 only, and
    its sums depend on the longest row of a batch.
    """
    return "CPU_MLA" if _caches_latents(config) else None


def _caches_latents(config: PreTrainedConfig) -> bool:
    family = FAMILIES.get(config.model_type)
    return family is not None and family.has_mla and not family.caches_heads


def settings(config: PreTrainedConfig) -> Mapping[str, Json]:
    """Return settings of config.json that vLLM reads and transformers implies."""
    family = FAMILIES.get(config.model_type)
    return {} if family is None else family.vllm_overrides


def generation(config: PreTrainedConfig) -> dict[str, Json]:
    """Return settings of config.json that vLLM reads as those of generation (Llama 4)."""
    key = "attn_temperature_tuning"
    return {key: getattr(config, key)} if hasattr(config, key) else {}


def corrected(config: PreTrainedConfig) -> PreTrainedConfig:
    """Correct a language model's configuration so that vLLM computes as transformers does."""
    ropes = getattr(config, "rope_parameters", None) or {}
    if beta := ropes.get("llama_4_scaling_beta"):  # which vLLM reads under another key
        positions = ropes["original_max_position_embeddings"]
        config.llama_4_scaling = {"original_max_position_embeddings": positions, "beta": beta}
    if config.model_type == "mistral4":  # of whose RoPE vLLM reads the width and the part of it
        config.rope_parameters = {**ropes, "partial_rotary_factor": 1.0}
    if ropes.get("rope_type") == "dynamic":
        # Rows within the trained length are not scaled; vLLM would scale all of them.
        config.rope_parameters = {**ropes, **_base(config), "rope_type": "default"}
    if config.model_type in ("cohere2", "cohere2_moe") and config.sliding_window:
        # vLLM's windows are one token longer.
        config.sliding_window -= 1
    if settings(config).get(_CLASS) == _GLM:  # which reads both, and else rotates half of a head
        config.head_dim = getattr(config, "head_dim", None) or (
            config.hidden_size // config.num_attention_heads
        )
        config.rope_parameters = {"partial_rotary_factor": 1.0, **ropes}
    if config.model_type == "gpt_neox":  # of which transformers reads no such key
        config.num_key_value_heads = config.num_attention_heads
    if config.model_type == "hunyuan_v1_moe":  # whose folders list both for each layer
        config.moe_topk = top_k_of(config.to_dict())
        config.moe_intermediate_size = config.intermediate_size
    if config.model_type == "hy_v3":  # which vLLM reads under keys of the hub
        config.expert_hidden_dim = config.moe_intermediate_size
    if config.model_type == "lfm2":  # whose widths it has under keys of the hub alone
        config.block_dim = config.conv_dim = config.hidden_size
    return config


def _base(config: PreTrainedConfig) -> dict[str, float]:
    """Return the RoPE base of unscaled dynamic RoPE, if it differs (Hunyuan)."""
    if not (alpha := config.rope_parameters.get("alpha")):
        return {}
    width = config.head_dim
    return {"rope_theta": config.rope_parameters["rope_theta"] * alpha ** (width / (width - 2))}


def served(config: PreTrainedConfig) -> PreTrainedConfig:
    """Return the same for a server, which loads the folder's weights by vLLM's classes."""
    changes = {name: value for name, value in settings(config).items() if name != _CLASS}
    corrected(getattr(config, TEXT_SECTION, config))
    return change(config, changes)
