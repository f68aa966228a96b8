"""What vLLM is told of a model that it would compute otherwise than transformers.

Engines of the job are told, and servers of a judge. Loads no vLLM, since all processes of a server
import it.
"""

from collections.abc import Mapping
from typing import Final

from transformers import PreTrainedConfig

from ppojob_trainer.json_value import Json
from ppojob_trainer.models.config_changes import change
from ppojob_trainer.models.config_files import TEXT_SECTION
from ppojob_trainer.models.families import FAMILIES

_OPERATIONS: Final = ("all", "-rms_norm", "-rotary_embedding")
"""Kernels that models of latent attention and of short convolutions use on the CPU: two read
columns of a wider matrix as if they lay one after the other; its plain PyTorch computes these."""
_CLASS: Final = "architectures"


def operations(config: PreTrainedConfig) -> list[str] | None:
    """Its kernels on a processor (`custom_ops`) for a model that is known; None for all of them."""
    family = FAMILIES.get(config.model_type)
    rule = family and family.recurrence and family.recurrence.rule
    is_misread = family is not None and (family.has_mla or rule == "convolution")
    return list(_OPERATIONS) if is_misread else None


def settings(config: PreTrainedConfig) -> Mapping[str, Json]:
    """What it reads of a config.json where transformers takes it for granted."""
    family = FAMILIES.get(config.model_type)
    return {} if family is None else family.told_vllm


def corrected(config: PreTrainedConfig) -> PreTrainedConfig:
    """The configuration of a language model, in which vLLM reads what transformers does."""
    ropes = getattr(config, "rope_parameters", None) or {}
    if beta := ropes.get("llama_4_scaling_beta"):  # which vLLM reads elsewhere
        positions = ropes["original_max_position_embeddings"]
        config.llama_4_scaling = {"original_max_position_embeddings": positions, "beta": beta}
    if ropes.get("rope_type") == "dynamic":
        # Of rows as long as they may be nothing is stretched; vLLM would stretch all of them.
        config.rope_parameters = {**ropes, **_base(config), "rope_type": "default"}
    if config.model_type == "cohere2" and config.sliding_window:
        # vLLM makes its windows a token longer.
        config.sliding_window -= 1
    if config.model_type == "gpt_neox":  # of which transformers reads no such key
        config.num_key_value_heads = config.num_attention_heads
    if config.model_type == "lfm2":  # whose widths it has under keys of the hub alone
        config.block_dim = config.conv_dim = config.hidden_size
    return config


def _base(config: PreTrainedConfig) -> dict[str, float]:
    """The base of dynamic angles that are not stretched, where it is another: Hunyuan's."""
    if not (alpha := config.rope_parameters.get("alpha")):
        return {}
    width = config.head_dim
    return {"rope_theta": config.rope_parameters["rope_theta"] * alpha ** (width / (width - 2))}


def served(config: PreTrainedConfig) -> PreTrainedConfig:
    """The same for a server, whose weights come from the folder: it has the classes for them."""
    told = {name: value for name, value in settings(config).items() if name != _CLASS}
    corrected(getattr(config, TEXT_SECTION, config))
    return change(config, told)
