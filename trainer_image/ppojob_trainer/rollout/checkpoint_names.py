"""Which tensors a model folder holds, and how large its key-value cache is: from headers alone."""

import json
from pathlib import Path

import torch
from safetensors import safe_open
from transformers import PretrainedConfig

from ppojob_trainer.errors import ConfigError

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"


def checkpoint_names(folder: Path, config: PretrainedConfig) -> frozenset[str]:
    """Return the Hugging Face names that a whole set of weights for `folder`'s model has.

    A tied `lm_head.weight` is left out, since it may or may not be stored, and so are rotary tables
    that old checkpoints carry.

    Raises:
        ConfigError: If the folder holds no safetensors.
    """
    if (folder / _INDEX).is_file():
        names = set(json.loads((folder / _INDEX).read_text(encoding="utf-8"))["weight_map"])
    elif (folder / _SINGLE).is_file():
        with safe_open(folder / _SINGLE, framework="pt") as file:
            names = set(file.keys())
    else:
        raise ConfigError(
            f"spec.model.path: got {folder}: it holds no weights; allowed: a folder with {_SINGLE} "
            f"or {_INDEX}"
        )
    if config.tie_word_embeddings:
        names.discard("lm_head.weight")
    return frozenset(name for name in names if not name.endswith("rotary_emb.inv_freq"))


def key_value_bytes_per_token(config: PretrainedConfig, dtype: torch.dtype) -> int:
    """Return what one token takes in the cache: keys and values of all layers and heads."""
    num_heads = config.num_attention_heads
    num_kv_heads = getattr(config, "num_key_value_heads", None) or num_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // num_heads
    return int(2 * config.num_hidden_layers * num_kv_heads * head_dim * dtype.itemsize)
