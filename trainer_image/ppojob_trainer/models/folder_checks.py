"""Checks of a model's folder: all problems at once, before anything is started.

Reads configuration, index and headers, never a tensor: seconds and megabytes even for a model that
takes minutes and gigabytes to load. Imports neither torch nor transformers.
"""

import difflib
import os
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ppojob_api.problem import ABSENT, Problem, counted, shown
from ppojob_api.run_layout import EXPORT_FOLDER
from ppojob_trainer.json_value import Json
from ppojob_trainer.models.architectures import (
    EMBEDDING,
    HEAD,
    Shape,
    Sizes,
    backbone_tensors,
    read_sizes,
)
from ppojob_trainer.models.config_changes import changed_document, check_changes
from ppojob_trainer.models.config_files import (
    TOWER,
    has_tower,
    read_config,
    with_usual_keys,
)
from ppojob_trainer.models.families import FAMILIES, MULTIMODAL
from ppojob_trainer.models.family import Family
from ppojob_trainer.models.hybrid_layers import LAYER_TYPES, layer_types
from ppojob_trainer.models.kinds import HEAD_BIAS, JUDGE, POLICY, ModelKind, label_count
from ppojob_trainer.models.mixtures import check_mixture, mixture_in
from ppojob_trainer.models.mtp_forms import is_mtp_weight
from ppojob_trainer.models.problems import ModelReason
from ppojob_trainer.models.quantised import check_quantised, warn_of_quantised
from ppojob_trainer.models.weight_files import FLOATS, listed, read_weights
from ppojob_trainer.models.weights import Weights

_WANTED: Final = (
    "a folder on this machine in Hugging Face form (config.json, *.safetensors, tokenizer.json); "
    "ppojob model makes one of a hub id"
)
_HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_WHOLE_LENGTH: Final = (None, "default", "mrope", "llama3", "yarn", "proportional", "dynamic")
"""RoPE types whose `max_position_embeddings` is the length after scaling.

For dynamic ones it is the length up to which frequencies are fixed.
"""
_BY_LENGTH: Final = ("longrope", "su")
"""RoPE types with fixed frequencies up to `original_max_position_embeddings`, and others beyond."""
_BY_ROWS: Final = ("dynamic", *_BY_LENGTH)
"""RoPE types whose frequencies depend on the longest row of a pass."""
_PHI3_POSITIONS: Final = 4096
_ROPE_SECTIONS: Final = ("rope_scaling", "rope_parameters")
_TURNS: Final = ["sliding_attention", "full_attention"]


@dataclass(frozen=True, slots=True)
class ModelReport:
    """Result of the checks; nothing may be started while there are errors."""

    errors: Sequence[Problem] = ()
    warnings: Sequence[Problem] = ()
    parameters: int | None = None  # number of weights; None if unknown
    vocabulary: int | None = None  # rows of the embedding; None if unknown
    context_tokens: int | None = None  # context length; None for no known limit


def check_model_folder(
    folder: Path, kind: ModelKind = POLICY, overrides: Mapping[str, Json] | None = None
) -> ModelReport:
    """Check a folder in Hugging Face form as a model of some kind, with a job's overrides."""
    path = folder / "config.json"
    if not os.path.lexists(path) or _is_checkpoint(folder):
        return ModelReport([_no_model(folder, kind)])
    config = read_config(path)
    weights = read_weights(folder)
    if isinstance(config, Problem):
        return ModelReport([config, *weights.problems], weights.warnings)
    config, errors = check_changed_config(config, overrides or {}, path, kind)
    sizes = read_sizes(config, path) if config.get("model_type") in FAMILIES else None
    if isinstance(sizes, list):
        errors += sizes
    warnings = list(weights.warnings)
    if sizes is not None:
        warnings += warn_of_quantised(weights, path)
        warnings += _code(config, path, "transformers' own class of this model_type is used")
    if isinstance(sizes, Sizes) and not weights.problems:
        needed = {**dict(backbone_tensors(sizes)), **dict(kind.head(sizes))}
        optional = dict(kind.optional(sizes))
        errors += _of_tensors(folder, needed, optional, weights)
        tower = {name for name in weights.tensors if name.startswith(TOWER)}
        known = needed.keys() | optional.keys() | (tower if has_tower(config) else set())
        mtp = {name for name in weights.tensors if is_mtp_weight(name, sizes.layers)}
        warnings += _unexpected(folder, known | mtp, weights)
    embedding = weights.tensors.get(EMBEDDING)
    return ModelReport(
        errors + weights.problems,
        warnings,
        parameters=sum(tensor.size for tensor in weights.tensors.values()) or None,
        vocabulary=embedding.shape[0] if embedding and embedding.shape else None,
        context_tokens=context_tokens(config),
    )


def _is_checkpoint(folder: Path) -> bool:
    """Whether it is a checkpoint of a run, whose config.json is not a model's."""
    return os.path.isfile(folder / "manifest.json") and not any(folder.glob("*.safetensors"))


def _no_model(folder: Path, kind: ModelKind) -> Problem:
    if _is_checkpoint(folder):
        step = folder.name.removeprefix("step-").lstrip("0")
        got, why = f'"{folder}"', "it is a checkpoint of a run"
        allowed = f"ppojob export RUN --checkpoint {step} --output DIR makes a model of it"
        return Problem(kind.where, got, why, allowed, ModelReason.MODEL_MISSING)
    try:
        os.scandir(folder).close()
        why = "there is no config.json in it"
    except NotADirectoryError:
        why = "it is a file"
    except FileNotFoundError:
        why = "there is no such folder"
    except (OSError, ValueError) as error:
        why = f"it cannot be read: {error.strerror if isinstance(error, OSError) else error}"
    got = f'"{folder}"'  # not shortened
    export, wanted = folder / EXPORT_FOLDER, _WANTED
    if os.path.isfile(export / "config.json"):
        wanted = f"the model that this run has trained is {export}"
    elif why == "there is no such folder" and _HUB_ID.fullmatch(str(folder)):
        wanted = f"hf://{folder}, if this is an id of the Hugging Face hub; or {_WANTED}"
    return Problem(kind.where, got, why, wanted, ModelReason.MODEL_MISSING)


def _of_tensors(
    folder: Path, needed: Mapping[str, Shape], optional: Mapping[str, Shape], weights: Weights
) -> Iterator[Problem]:
    """Report tensors that are missing from the files, or have another shape."""
    missing = [name for name in needed if name not in weights.tensors]
    misshapen = [
        (name, tensor.shape, shape)
        for name, shape in {**needed, **optional}.items()
        if (tensor := weights.tensors.get(name)) is not None and tensor.shape != shape
    ]
    allowed = "the weights that belong to this config.json"
    if missing:
        got = f"no {listed(missing)}"
        why = "config.json needs these weights, and no file holds them"
        yield Problem(str(folder), got, why, allowed, ModelReason.TENSOR_MISSING)
    if misshapen:
        name, stored, shape = misshapen[0]
        where, got = f"{weights.files[name]}:{weights.stored[name]}", f"shape {shown(list(stored))}"
        why = f"config.json makes it {shown(list(shape))}{_more(misshapen)}"
        yield Problem(where, got, why, allowed, ModelReason.TENSOR_SHAPE)
    others = [
        name
        for name, tensor in weights.tensors.items()
        if tensor.dtype not in FLOATS and name.endswith(".weight")
    ]
    if others:
        name, allowed = others[0], f"weights of {', '.join(FLOATS)}"
        where, got = f"{weights.files[name]}:{weights.stored[name]}", weights.tensors[name].dtype
        why = f"a quantised checkpoint cannot be trained{_more(others)}"
        yield Problem(where, got, why, allowed, ModelReason.QUANTISED)


def _more(like_it: Sequence[object]) -> str:
    further = counted(len(like_it) - 1, "more tensor")
    return f" (and {further} like it)" if len(like_it) > 1 else ""


def _unexpected(folder: Path, known: Set[str], weights: Weights) -> Iterator[Problem]:
    others = sorted(weights.tensors.keys() - known - {HEAD, HEAD_BIAS})
    if others:
        why, allowed = "no layer of the model uses them", "fine where they belong to something else"
        yield Problem(str(folder), listed(others), why, allowed, ModelReason.TENSOR_UNEXPECTED)


def check_changed_config(
    config: dict[str, Json], overrides: Mapping[str, Json], path: Path, kind: ModelKind
) -> tuple[dict[str, Json], list[Problem]]:
    """Return a configuration with the overrides that are not refused, and all of its problems."""
    problems = list(check_changes(config, overrides))
    config = config if problems else changed_document(config, overrides)
    problems += check_config(config, path, kind)
    return config, problems


def check_config(config: Mapping[str, Json], path: Path, kind: ModelKind) -> Iterator[Problem]:
    """Report why a model cannot be used, by its configuration alone."""
    model_type = config.get("model_type")
    family = FAMILIES.get(str(model_type))
    if family is None:
        got = ABSENT if model_type is None else shown(model_type)
        why = "models of this type are not supported"
        near = difflib.get_close_matches(str(model_type), [*FAMILIES, *MULTIMODAL])
        allowed = "one that docs/models.md lists" + (f", such as {', '.join(near)}" if near else "")
        yield _unsupported(f"{path}:model_type", got, why, allowed)
    yield from _check_class(config, path, kind)
    if family is not None:
        yield from _check_family(family, config, path)
        if mixture := mixture_in(config):
            yield from check_mixture(mixture, config, path)
    yield from check_quantised(config, path, is_served=kind == JUDGE)
    if family is None:
        yield from _code(config, path, "a model type that the trainer supports")


def _code(config: Mapping[str, Json], path: Path, allowed: str) -> Iterator[Problem]:
    """Report Python code of a folder that wants to be run (trust_remote_code); it never is."""
    code = config.get("auto_map")
    if code is not None:
        why = "the model needs remote code (trust_remote_code)"
        yield Problem(f"{path}:auto_map", shown(code), why, allowed, ModelReason.REMOTE_CODE)


def context_tokens(config: Mapping[str, Json]) -> int | None:
    """Return the model's context length; None where dynamic scaling has no limit.

    Where longer rows would change the frequencies, the length before that: vLLM allows no more
    either.

    Source: vLLM 0.32, `config/model.py`, `_get_and_verify_max_len`.
    """
    for _, rope in _ropes(config):
        name = rope.get("rope_type", rope.get("type"))
        if name in _BY_LENGTH:
            within = rope.get("original_max_position_embeddings", _PHI3_POSITIONS)
            positions = config.get("original_max_position_embeddings", within)
            return positions if isinstance(positions, int) else None
        if name not in _WHOLE_LENGTH:
            return None
    positions = with_usual_keys(config).get("max_position_embeddings")
    return positions if isinstance(positions, int) else None


def _check_class(config: Mapping[str, Json], path: Path, kind: ModelKind) -> Iterator[Problem]:
    names = config.get("architectures")
    if isinstance(names, list) and names:
        if not any(part in str(name) for name in names for part in kind.classes):
            yield _unsupported(f"{path}:architectures", shown(names), kind.why, kind.wanted)
        elif label_count(config) not in (None, 1):
            got, why = f"{label_count(config)} labels", "a reward or value head has one output"
            yield _unsupported(f"{path}:id2label", got, why, kind.wanted)


def _supported(family: Family) -> dict[str, tuple[Json, ...]]:
    """Return the supported values of keys; an absent key means the first."""
    usual: dict[str, tuple[Json, ...]] = {}
    if not family.always_biased:  # some of which have these keys, which say nothing
        unknown = {"attention_bias", "mlp_bias"} - family.biases.keys()
        usual = dict.fromkeys(sorted(unknown), (False, None))
    if family.mixture:
        usual["hidden_act"] = ("silu",)  # as experts are computed here
    return {**usual, **family.supported}


def _check_family(family: Family, config: Mapping[str, Json], path: Path) -> Iterator[Problem]:
    for key, values in _supported(family).items():
        if config.get(key, values[0]) not in values:
            why, allowed = "this value is not supported", " or ".join(map(shown, values))
            yield _unsupported(f"{path}:{key}", shown(config[key]), why, allowed)
    if not family.has_windows and _has_windows(config):
        got = shown(config.get("sliding_window"))
        why = "sliding-window attention is not supported for this model"
        yield _unsupported(f"{path}:sliding_window", got, why, "a model without windows")
    kinds = config.get("layer_types")
    if (
        family.alternates_windows
        and isinstance(kinds, list)
        and kinds != (_TURNS * len(kinds))[: len(kinds)]
    ):
        why, allowed = "vLLM expects alternating layers", f"{' and '.join(_TURNS)} by turns"
        yield _unsupported(f"{path}:layer_types", shown(kinds), why, allowed)
    others = sorted(set(layer_types(config) or ()).difference(LAYER_TYPES))
    if family.has_one_block and others:
        why, allowed = "the model has no such kind of layer", " or ".join(LAYER_TYPES)
        yield _unsupported(f"{path}:layers_block_type", shown(others[0]), why, allowed)
    for section, rope in _ropes(config):
        name = rope.get("rope_type", rope.get("type"))
        if name not in family.ropes:
            why = "this RoPE type is not supported for this model"
            if name in _BY_ROWS:
                why = "RoPE angles of a row would depend on the other rows of the batch"
            allowed = f"a model with one of {', '.join(filter(None, family.ropes))}"
            yield _unsupported(f"{path}:{section}", shown(name), why, allowed)


def _ropes(config: Mapping[str, Json]) -> Iterator[tuple[str, Mapping[str, Json]]]:
    """Return the RoPE settings of config.json, for all layers or per layer type."""
    for section in _ROPE_SECTIONS:
        rope = config.get(section)
        if isinstance(rope, dict):
            yield section, rope
            yield from ((f"{section}.{k}", v) for k, v in rope.items() if isinstance(v, dict))


def _unsupported(where: str, got: str, why: str, allowed: str) -> Problem:
    return Problem(where, got, why, allowed, ModelReason.UNSUPPORTED_ARCHITECTURE)


def _has_windows(config: Mapping[str, Json]) -> bool:
    """Whether any layer has a sliding window, by the rules of Qwen2 and Qwen3."""
    kinds = config.get("layer_types")
    if isinstance(kinds, list):
        return "sliding_attention" in kinds
    if config.get("use_sliding_window") is not True or config.get("sliding_window") is None:
        return False
    if FAMILIES[str(config["model_type"])].mixture:  # all of whose layers are alike
        return True
    first, layers = config.get("max_window_layers", 28), config.get("num_hidden_layers")
    return not (isinstance(first, int) and isinstance(layers, int) and first >= layers)
