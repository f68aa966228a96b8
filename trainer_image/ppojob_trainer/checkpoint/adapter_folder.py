"""LoRA adapter folders that `peft` loads.

Format: https://huggingface.co/docs/peft/developer_guides/checkpoint; vLLM and others load it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from ppojob_trainer import durable
from ppojob_trainer.checkpoint.tensors import write_tensors
from ppojob_trainer.models.adapter_files import CONFIG_FILE, WEIGHTS_FILE
from ppojob_trainer.models.adapter_names import peft_name, peft_shape, saved_name
from ppojob_trainer.models.architectures import EMBEDDING, HEAD
from ppojob_trainer.models.config_files import folder_has_tower
from ppojob_trainer.models.kinds import TEXTS, TOKENS, ModelKind
from ppojob_trainer.models.lora import Adapter, in_peft_form
from ppojob_trainer.parallel.boxes import AllGather

FILE_POINT: Final = durable.point("export.file", *durable.FILE_ACTS)
"""Permissions of all small files of an export."""

_TASKS: Final = {TEXTS: "SEQ_CLS", TOKENS: "TOKEN_CLS"}


@dataclass(frozen=True, slots=True)
class AdapterForm:
    """The model that adapters were trained on, and its form."""

    base: Path  # its folder
    kind: ModelKind
    layers: str  # transformers' name of its decoder layers
    is_tied: bool  # whether its output layer is the embedding


def write_adapters(
    folder: Path | None,
    adapters: Mapping[str, Adapter],
    head: Mapping[str, Tensor],
    join: AllGather,
    form: AdapterForm,
) -> None:
    """Write a folder of adapters, by the names of the adapted weights, all-gathered by `join`.

    `head` is the trained head of a classifier, or layers of a language model trained whole. A rank
    without a folder only sends its shards.
    """
    whole = _whole(head, is_tied=form.is_tied)
    named, joined = _in_peft(adapters, whole, join, layers=form.layers)
    if folder is None:
        write_tensors(None, named, join=joined)
        return
    durable.make_folder(folder, parents=True)
    write_tensors(folder / WEIGHTS_FILE, named, metadata={"format": "pt"}, join=joined)
    lora = next(iter(adapters.values())).lora
    alpha = lora.alpha_of_rows
    stacks = {name for name, adapter in adapters.items() if adapter.a.ndim > 2}
    targets: list[str] | str = sorted({name.split(".")[-2] for name in adapters.keys() - stacks})
    if targets and folder_has_tower(form.base):  # which has layers of the same names
        targets = rf"(.*\.)?{form.layers}\..*\.({'|'.join(targets)})"
    config = {
        "base_model_name_or_path": str(form.base),
        "bias": "none",
        "fan_in_fan_out": any(one.is_transposed for one in adapters.values() if one.a.ndim == 2),
        "inference_mode": True,
        "init_lora_weights": True,
        "lora_alpha": int(alpha) if alpha.is_integer() else alpha,
        "lora_dropout": lora.dropout,
        "modules_to_save": sorted({name.rpartition(".")[0] for name in whole}) or None,
        "peft_type": "LORA",
        "r": lora.rows,
        "target_modules": targets,
        "task_type": _TASKS.get(form.kind.made_as, "CAUSAL_LM"),
        "use_rslora": lora.rank_stabilized,
    }
    if lora.weight_decomposed:
        config["use_dora"] = True
    if stacks:
        config["target_parameters"] = sorted({".".join(name.split(".")[-2:]) for name in stacks})
    text = json.dumps(config, indent=2, ensure_ascii=False)
    durable.write_file(folder / CONFIG_FILE, text.encode() + b"\n", FILE_POINT)


_Named = tuple[str, Tensor]
"""A tensor with its name in the model."""


def _whole(head: Mapping[str, Tensor], *, is_tied: bool) -> dict[str, _Named]:
    """Return the layers trained whole by their names in a folder, tied layers twice."""
    whole = {name: (name, tensor) for name, tensor in head.items()}
    if is_tied and EMBEDDING in whole:
        whole[HEAD] = whole[EMBEDDING]
    return whole


def _in_peft(
    adapters: Mapping[str, Adapter], whole: Mapping[str, _Named], join: AllGather, *, layers: str
) -> tuple[dict[str, Tensor], AllGather]:
    """Return all tensors by PEFT's names, on the meta device, and the function that gathers one."""
    held = {saved_name(name): one for name, one in whole.items()}
    for weight, adapter in adapters.items():
        for own, tensor in adapter.named(weight).items():
            held[peft_name(own, adapter.lora, layers=layers)] = own, tensor

    def joined(name: str, _shown: Tensor, dtype: torch.dtype) -> Tensor:
        own, matrix = held[name]
        return in_peft_form(own, join(name, matrix, dtype))

    return {
        name: torch.empty(peft_shape(own, tuple(one.shape)), dtype=one.dtype, device="meta")
        for name, (own, one) in held.items()
    }, joined
