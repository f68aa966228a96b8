"""LoRA adapter folders in PEFT's format: what they hold, and whether a job can start from one.

Format: https://huggingface.co/docs/peft/developer_guides/checkpoint. Does not import torch.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from ppojob_api.problem import ABSENT, Problem, ReasonCode, shown
from ppojob_api.v1alpha1.model import LoraSpec
from ppojob_trainer.json_value import Json
from ppojob_trainer.models.adapter_names import PEFT_MATRICES, peft_name, peft_shape, saved_name
from ppojob_trainer.models.architectures import (
    HEAD,
    SAVED_WEIGHTS,
    Shape,
    adapter_shapes,
    saved_weights,
    sizes_of,
)
from ppojob_trainer.models.config_files import layers_name_in
from ppojob_trainer.models.problems import ModelReason, read_object
from ppojob_trainer.models.weight_files import BadHeader, listed, read_header

ADAPTER_FOLDER: Final = "adapter"
"""Folder of the adapters in an export of a LoRA job."""
CONFIG_FILE: Final = "adapter_config.json"
WEIGHTS_FILE: Final = "adapter_model.safetensors"

_OF_CHANGED_BASES: Final = ("pissa", "olora", "corda", "loftq")
"""PEFT's `init_lora_weights` values that subtract the initial adapter from the base weights."""


def check_adapters(lora: LoraSpec, model: str, where: str) -> Iterator[Problem]:
    """Return why the job cannot start from its adapter folder; nothing if it names none.

    `model` is the folder of the base model, and `where` the section of the adapters.
    """
    if lora.path is None:
        return
    folder = Path(lora.path)
    if not (folder / CONFIG_FILE).is_file():
        near = folder / ADAPTER_FOLDER
        allowed = "a folder in PEFT's form, such as adapter/ of an export"
        yield Problem(
            f"{where}.path",
            shown(lora.path),
            f"there is no {CONFIG_FILE} in it",
            str(near) if (near / CONFIG_FILE).is_file() else allowed,
            ModelReason.BAD_CONFIG,
        )
        return
    config = read_object(folder / CONFIG_FILE, ModelReason.BAD_CONFIG)
    if isinstance(config, Problem):
        yield config
        return
    yield from _settings(lora, config, where)
    if (sizes := sizes_of(model)) is None:
        return
    layers = layers_name_in(model)
    shapes = adapter_shapes(sizes, lora).items()
    needed = {
        peft_name(name, lora, layers=layers): peft_shape(name, shape) for name, shape in shapes
    }
    needed |= {saved_name(name): (sizes.vocabulary, sizes.hidden) for name in saved_weights(lora)}
    yield from _whole_layers(lora, config, where, is_tied=sizes.is_tied)
    try:
        stored = read_header(folder / WEIGHTS_FILE)
    except BadHeader as bad:
        yield bad.problem
        return
    found = {name: tensor.shape for name, tensor in stored.items()}
    if sizes.is_tied and saved_weights(lora):
        found.pop(saved_name(HEAD), None)  # a second copy of the embedding
    is_dora = bool(config.get("use_dora"))
    if (config.get("r"), is_dora) == (lora.rank, lora.weight_decomposed):  # else all differ
        yield from _tensors(lora, found, needed, where)


def _settings(lora: LoraSpec, config: Mapping[str, Json], where: str) -> Iterator[Problem]:
    path = f"{lora.path}/{CONFIG_FILE}"
    for key, allowed in (("peft_type", "LORA"), ("alpha_pattern", {})):
        value = config.get(key) or allowed
        if value != allowed:
            why = "only plain LoRA adapters are supported"
            at = f"{path}:{key}"
            yield Problem(at, shown(value), why, shown(allowed), ReasonCode.CONFLICT)
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.startswith(_OF_CHANGED_BASES):
        why = "PEFT changes the base weights when it loads such adapters"
        at = f"{path}:init_lora_weights"
        yield Problem(
            at, shown(start), why, "adapters of the unchanged base weights", ReasonCode.CONFLICT
        )
    for key, field, value in (
        ("r", "rank", lora.rank),
        ("lora_alpha", "alpha", lora.alpha),
        ("use_rslora", "rankStabilized", lora.rank_stabilized),
        ("use_dora", "weightDecomposed", lora.weight_decomposed),
    ):
        said = config.get(key)
        theirs = bool(said) if isinstance(value, bool) else said  # absent, and null: false
        if theirs != value:
            told = ABSENT if theirs is None else shown(theirs)
            why = f"{key} is {told} in {path}"
            allowed = f"{told}, or other adapters"
            yield Problem(f"{where}.{field}", shown(value), why, allowed, ReasonCode.CONFLICT)


def _whole_layers(
    lora: LoraSpec, config: Mapping[str, Json], where: str, *, is_tied: bool
) -> Iterator[Problem]:
    """Return a problem if other layers were trained whole, of those that a job can train so."""
    listed_there = config.get("modules_to_save")
    names = listed_there if isinstance(listed_there, list) else []
    theirs = {str(name).rpartition(".")[2] for name in names} & SAVED_WEIGHTS.keys()
    if is_tied and "embed_tokens" in theirs:
        theirs.discard("lm_head")
    ours = set(lora.modules_to_save or ())
    if ours != theirs:
        told = shown(sorted(theirs)) if theirs else ABSENT
        why = f"modules_to_save is {told} in {lora.path}/{CONFIG_FILE}"
        got, allowed = shown(sorted(ours)) if ours else ABSENT, f"{told}, or other adapters"
        yield Problem(f"{where}.modulesToSave", got, why, allowed, ReasonCode.CONFLICT)


def _tensors(
    lora: LoraSpec, found: Mapping[str, Shape], needed: Mapping[str, Shape], where: str
) -> Iterator[Problem]:
    """Return a problem for layers that only the job or only the folder adapts."""
    of_experts = [any(".experts." in name for name in names) for names in (found, needed)]
    if of_experts[0] != of_experts[1]:
        has = "adapters" if of_experts[0] else "no adapters"
        allowed = "experts: true" if of_experts[0] else "remove it"
        why = f"{lora.path} has {has} of experts"
        got = shown(lora.experts)
        yield Problem(
            f"{where}.experts", got, why, f"{allowed}, or other adapters", ReasonCode.CONFLICT
        )
        return
    ours, theirs = _modules(needed), _modules(found)
    if ours != theirs:
        got = shown(list(lora.target_modules)) if lora.target_modules else ABSENT
        why = f"{lora.path} has adapters of {', '.join(sorted(theirs)) or 'no layer'}"
        allowed = "these, or other adapters"
        yield Problem(f"{where}.targetModules", got, why, allowed, ReasonCode.CONFLICT)
        return
    differing = sorted(
        name for name in found.keys() | needed.keys() if found.get(name) != needed.get(name)
    )
    if differing:
        why = "the model's adapters have others, or none of that shape"
        allowed = "adapters of this model, A and B of whole layers alone"
        path = f"{lora.path}/{WEIGHTS_FILE}"
        yield Problem(path, listed(differing), why, allowed, ModelReason.TENSOR_SHAPE)


def _modules(names: Mapping[str, Shape]) -> set[str]:
    """Return the last names of adapted layers; for stacked experts that of their module."""
    ends = tuple(f".{end}" for end in PEFT_MATRICES.values())
    layers = (name.replace(".base_layer.", ".").split(".") for name in names if name.endswith(ends))
    return {layer[-3] for layer in layers}
