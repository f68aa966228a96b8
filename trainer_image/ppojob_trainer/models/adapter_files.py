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

_CHANGES_BASE: Final = ("pissa", "olora", "corda", "loftq")
"""PEFT's `init_lora_weights` values that subtract the initial adapter from the base weights."""


def check_adapters(lora: LoraSpec, model: str, where: str) -> Iterator[Problem]:
    """Report why a job cannot start from its adapters, of the section `where`, on a base model."""
    if lora.path is None:
        return
    folder = Path(lora.path)
    if not (folder / CONFIG_FILE).is_file():
        allowed = "a folder in PEFT's form, such as adapter/ of an export"
        if (folder / ADAPTER_FOLDER / CONFIG_FILE).is_file():
            allowed = str(folder / ADAPTER_FOLDER)
        why = f"there is no {CONFIG_FILE} in it"
        yield Problem(f"{where}.path", shown(lora.path), why, allowed, ModelReason.BAD_CONFIG)
        return
    config = read_object(folder / CONFIG_FILE, ModelReason.BAD_CONFIG)
    if isinstance(config, Problem):
        yield config
        return
    yield from _check_settings(lora, config, where)
    if (sizes := sizes_of(model)) is None:
        return
    layers = layers_name_in(model)
    shapes = adapter_shapes(sizes, lora).items()
    needed = {
        peft_name(name, lora, layers=layers): peft_shape(name, shape) for name, shape in shapes
    }
    needed |= {saved_name(name): (sizes.vocabulary, sizes.hidden) for name in saved_weights(lora)}
    yield from _check_saved_layers(lora, config, where, is_tied=sizes.is_tied)
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
        yield from _check_tensors(lora, found, needed, where)


def _check_settings(lora: LoraSpec, config: Mapping[str, Json], where: str) -> Iterator[Problem]:
    path = f"{lora.path}/{CONFIG_FILE}"
    for key, only in (("peft_type", "LORA"), ("alpha_pattern", {})):
        if (value := config.get(key) or only) != only:
            why = "only plain LoRA adapters are supported"
            yield Problem(f"{path}:{key}", shown(value), why, shown(only), ReasonCode.CONFLICT)
    init = config.get("init_lora_weights")
    if isinstance(init, str) and init.startswith(_CHANGES_BASE):
        why = "PEFT changes the base weights when it loads such adapters"
        at, allowed = f"{path}:init_lora_weights", "adapters of the unchanged base weights"
        yield Problem(at, shown(init), why, allowed, ReasonCode.CONFLICT)
    for key, field, value in (
        ("r", "rank", lora.rank),
        ("lora_alpha", "alpha", lora.alpha),
        ("use_rslora", "rankStabilized", lora.rank_stabilized),
        ("use_dora", "weightDecomposed", lora.weight_decomposed),
    ):
        theirs = config.get(key)
        theirs = bool(theirs) if isinstance(value, bool) else theirs  # absent, and null: false
        if theirs != value:
            stored = ABSENT if theirs is None else shown(theirs)
            why, allowed = f"{key} is {stored} in {path}", f"{stored}, or other adapters"
            yield Problem(f"{where}.{field}", shown(value), why, allowed, ReasonCode.CONFLICT)


def _check_saved_layers(
    lora: LoraSpec, config: Mapping[str, Json], where: str, *, is_tied: bool
) -> Iterator[Problem]:
    """Report other `modules_to_save` than the job's, of those that a job can train whole."""
    modules = config.get("modules_to_save")
    names = modules if isinstance(modules, list) else []
    theirs = {str(name).rpartition(".")[2] for name in names} & SAVED_WEIGHTS.keys()
    if is_tied and "embed_tokens" in theirs:
        theirs.discard("lm_head")
    ours = set(lora.modules_to_save or ())
    if ours != theirs:
        stored = shown(sorted(theirs)) if theirs else ABSENT
        why = f"modules_to_save is {stored} in {lora.path}/{CONFIG_FILE}"
        got, allowed = shown(sorted(ours)) if ours else ABSENT, f"{stored}, or other adapters"
        yield Problem(f"{where}.modulesToSave", got, why, allowed, ReasonCode.CONFLICT)


def _check_tensors(
    lora: LoraSpec, found: Mapping[str, Shape], needed: Mapping[str, Shape], where: str
) -> Iterator[Problem]:
    """Report layers that only the job or only the folder adapts."""
    theirs_have, ours_have = (any(".experts." in name for name in one) for one in (found, needed))
    if theirs_have != ours_have:
        why = f"{lora.path} has {'adapters' if theirs_have else 'no adapters'} of experts"
        allowed = f"{'experts: true' if theirs_have else 'remove it'}, or other adapters"
        got = shown(lora.experts)
        yield Problem(f"{where}.experts", got, why, allowed, ReasonCode.CONFLICT)
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
