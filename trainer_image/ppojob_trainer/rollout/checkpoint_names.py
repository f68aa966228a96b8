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
from ppojob_trainer.models.families import FAMILIES
from ppojob_trainer.models.kinds import POLICY


def checkpoint_names(config: PretrainedConfig) -> frozenset[str]:
    """Return the Hugging Face names of a full set of weights; ConfigError if a size is missing.

    A tied `lm_head.weight`, which files may or may not contain, is not included.
    """
    sizes = _sizes(config)
    return frozenset(dict((*backbone_tensors(sizes), *POLICY.head(sizes))))


def adapter_names(config: PretrainedConfig, lora: LoraSpec) -> frozenset[str]:
    """Return the names of a model's adapter matrices; ConfigError if a size is missing."""
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
    """Return the cache bytes of one token on a rank: keys and values of all attention layers.

    Layers that reuse an earlier layer's have none. Tensor-parallel ranks share the heads, at least
    one each.
    """
    latent = getattr(config, "kv_lora_rank", None)
    if latent is not None and not FAMILIES[config.model_type].caches_heads:  # shared by all heads
        width = latent + config.qk_rope_head_dim
        return int(config.num_hidden_layers * width * dtype.itemsize)
    sizes = _sizes(config)
    attending = filter(sizes.has_attention, range(sizes.layers))
    attention = map(sizes.attention, attending)
    widths = (max(1, one.key_heads // ranks) * one.head_size for one in attention if one.has_keys)
    return int(2 * sum(widths) * dtype.itemsize)


def state_bytes(config: PretrainedConfig, dtype: torch.dtype, ranks: int = 1) -> int:
    """Return the cache bytes of a row on a rank for recurrent states.

    Attention layers count as well: their last block is as large as a state.
    """
    sizes = _sizes(config)
    if (states := sizes.recurrence) is None:
        return 0
    inputs = states.channels * (states.taps - 1) * dtype.itemsize
    layer = inputs + states.inner * states.key * torch.float32.itemsize
    layers = len(states.layers) + sum(map(sizes.has_attention, range(sizes.layers)))
    return layers * layer // ranks
