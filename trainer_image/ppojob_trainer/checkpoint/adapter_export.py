"""Adapters in an export: merged into the weights, and apart in the form of the library PEFT.

Format: https://huggingface.co/docs/peft/developer_guides/checkpoint; vLLM and others load it too.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from ppojob_trainer import durable
from ppojob_trainer.checkpoint import tensors as files
from ppojob_trainer.checkpoint.tensors import Join, accompany_writer, write_tensors
from ppojob_trainer.models.lora import Adapter

WEIGHTS_FILE: Final = "adapter_model.safetensors"
CONFIG_FILE: Final = "adapter_config.json"

_PREFIX: Final = "base_model.model."


def merging(adapters: Mapping[str, Adapter]) -> Join:
    """What stores weights with their adapters merged, in float32, and others as they are."""

    def join(name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        if name not in adapters:
            return files.join(name, tensor, dtype)
        return adapters[name].merged(tensor.detach().to(dtype)).to(dtype)

    return join


def write_adapters(folder: Path, adapters: Mapping[str, Adapter], base: str, point: str) -> None:
    """Write a folder that `peft` loads; other ranks call `accompany_adapters` where it is cut.

    Args:
        folder: is made.
        adapters: at least one, by the names of the weights that they change.
        base: folder of the model that they were trained on.
        point: name of the failpoints of writing.

    Raises:
        StorageError: the disk refused.
    """
    durable.make_folder(folder)
    write_tensors(folder / WEIGHTS_FILE, _named(adapters), metadata={"format": "pt"})
    one = next(iter(adapters.values()))
    config = {
        "base_model_name_or_path": base,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "lora_alpha": int(one.alpha) if one.alpha.is_integer() else one.alpha,
        "lora_dropout": 0.0,
        "modules_to_save": None,
        "peft_type": "LORA",
        "r": one.rank,
        "target_modules": sorted({name.split(".")[-2] for name in adapters}),
        "task_type": "CAUSAL_LM",
        "use_rslora": False,
    }
    text = json.dumps(config, indent=2, ensure_ascii=False)
    durable.write_file(folder / CONFIG_FILE, text.encode() + b"\n", point)


def accompany_adapters(adapters: Mapping[str, Adapter]) -> None:
    """Give this rank's parts to the rank that calls `write_adapters`."""
    accompany_writer(_named(adapters))


def _named(adapters: Mapping[str, Adapter]) -> dict[str, Tensor]:
    """The matrices by PEFT's names."""
    found = {}
    for name, adapter in adapters.items():
        layer = _PREFIX + name.removesuffix(".weight")
        found[f"{layer}.lora_A.weight"] = adapter.a
        found[f"{layer}.lora_B.weight"] = adapter.b
    return found
