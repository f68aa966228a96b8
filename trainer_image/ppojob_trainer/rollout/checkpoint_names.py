"""Tensor names of a model's weights, and key-value cache sizes, from the model config alone."""

from pathlib import Path

import torch
from transformers import PretrainedConfig

from ppojob_api.v1alpha1.model import LoraSpec
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.models.architectures import (
    Sizes,
    adapter_shapes,
    backbone_tensors,
    read_sizes,
)
from ppojob_trainer.models.kinds import POLICY


def checkpoint_names(config: PretrainedConfig) -> frozenset[str]:
    """Return the Hugging Face names that a whole set of weights for a model has.

    Other tensors in files (old rotary tables, another library's value head) do not belong to the
    model. A tied `lm_head.weight` is left out, since files may or may not contain it.

    Raises:
        ConfigError: If the config lacks a size.
    """
    sizes = _sizes(config)
    return frozenset(dict((*backbone_tensors(sizes), *POLICY.head(sizes))))


def adapter_names(config: PretrainedConfig, lora: LoraSpec) -> frozenset[str]:
    """Return the names of the matrices of a model's adapters.

    Raises:
        ConfigError: If the config lacks a size.
    """
    return frozenset(adapter_shapes(_sizes(config), lora))


def _sizes(config: PretrainedConfig) -> Sizes:
    sizes = read_sizes(config.to_dict(), Path(config.name_or_path) / "config.json")
    if not isinstance(sizes, Sizes):
        raise ConfigError(map(str, sizes))
    return sizes


def has_states(config: PretrainedConfig) -> bool:
    """Whether some layers of a model keep a recurrent state."""
    return _sizes(config).recurrence is not None


def key_value_bytes_per_token(config: PretrainedConfig, dtype: torch.dtype, ranks: int = 1) -> int:
    """Return the cache bytes of one token on a rank: keys and values of its heads, of all layers.

    Layers with recurrent states have none, nor have those that reuse an earlier layer's.
    Tensor-parallel ranks of an engine share the heads, and each has at least one.
    """
    latent = getattr(config, "kv_lora_rank", None)
    if latent is not None:  # shared by all heads
        width = latent + config.qk_rope_head_dim
        return int(config.num_hidden_layers * width * dtype.itemsize)
    sizes = _sizes(config)
    attending = filter(sizes.has_attention, range(sizes.layers))
    attention = map(sizes.attention, attending)
    widths = (max(1, one.key_heads // ranks) * one.head_size for one in attention if one.has_keys)
    return int(2 * sum(widths) * dtype.itemsize)


def state_bytes(config: PretrainedConfig, dtype: torch.dtype, ranks: int = 1) -> int:
    """Return a row's cache bytes on a rank besides its tokens, if layers keep recurrent states.

    Attention layers count as well: their last block is as large as a state.
    """
    sizes = _sizes(config)
    if (states := sizes.recurrence) is None:
        return 0
    inputs = states.channels * (states.taps - 1) * dtype.itemsize
    layer = inputs + states.inner * states.key * torch.float32.itemsize
    kept = len(states.layers) + sum(map(sizes.has_attention, range(sizes.layers)))
    return kept * layer // ranks
