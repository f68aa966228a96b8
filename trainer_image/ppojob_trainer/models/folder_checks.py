"""All that is wrong with a model's folder, found before anything is started.

Reads configuration, index and headers, never a tensor: seconds and megabytes also for a model that
takes minutes and gigabytes to load. Loads neither torch nor transformers.
"""

import os
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ppojob_api.problem import Problem, shown
from ppojob_trainer.models.architectures import (
    ARCHITECTURES,
    EMBEDDING,
    HEAD,
    Shape,
    Sizes,
    backbone_tensors,
    read_sizes,
)
from ppojob_trainer.models.config_checks import check_config, context_tokens
from ppojob_trainer.models.json_objects import read_object
from ppojob_trainer.models.kinds import POLICY, ModelKind
from ppojob_trainer.models.problems import ModelReason
from ppojob_trainer.models.safetensors_header import FLOATS
from ppojob_trainer.models.weight_files import Weights, listed, read_weights

_WANTED: Final = (
    "a folder on this machine in Hugging Face form (config.json, *.safetensors, tokenizer.json); "
    "ppojob model makes one of a hub id"
)
_IGNORED: Final = (HEAD, "rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached")


@dataclass(frozen=True, slots=True)
class ModelReport:
    """What the checks found.

    Attributes:
        errors: what must be mended; nothing may be started while there are any.
        parameters: number of weights; None where it is not known.
        vocabulary: rows of the embedding; None where it is not known.
        context_tokens: longest sequence that the model was made for; None for no known limit.
    """

    errors: Sequence[Problem] = field(default=())
    warnings: Sequence[Problem] = field(default=())
    parameters: int | None = None
    vocabulary: int | None = None
    context_tokens: int | None = None


def check_model_folder(
    folder: Path, kind: ModelKind = POLICY, *, trust_remote_code: bool
) -> ModelReport:
    """Judge a folder in Hugging Face form, as a model of some kind."""
    path = folder / "config.json"
    if not os.path.lexists(path):
        return ModelReport([_no_model(folder, kind)])
    config = read_object(path, ModelReason.BAD_CONFIG)
    weights = read_weights(folder)
    if isinstance(config, Problem):
        return ModelReport([config, *weights.problems], weights.warnings)
    errors = list(check_config(config, path, kind, trust_remote_code=trust_remote_code))
    sizes = read_sizes(config, path) if config.get("model_type") in ARCHITECTURES else None
    if isinstance(sizes, list):
        errors += sizes
    warnings = list(weights.warnings)
    if isinstance(sizes, Sizes) and not weights.problems:
        needed = {**dict(backbone_tensors(sizes)), **dict(kind.head(sizes))}
        optional = dict(kind.optional(sizes))
        errors += _of_tensors(folder, needed, optional, weights)
        warnings += _unexpected(folder, needed.keys() | optional.keys(), weights)
    embedding = weights.tensors.get(EMBEDDING)
    return ModelReport(
        errors + weights.problems,
        warnings,
        parameters=sum(tensor.size for tensor in weights.tensors.values()) or None,
        vocabulary=embedding.shape[0] if embedding and embedding.shape else None,
        context_tokens=context_tokens(config),
    )


def _no_model(folder: Path, kind: ModelKind) -> Problem:
    try:
        os.scandir(folder).close()
        why = "there is no config.json in it"
    except NotADirectoryError:
        why = "it is a file"
    except FileNotFoundError:
        why = "there is no such folder"
    except (OSError, ValueError) as error:
        why = f"it cannot be read: {error.strerror if isinstance(error, OSError) else error}"
    got = f'"{folder}"'  # whole, however long: the end of a path tells most
    return Problem(kind.where, got, why, _WANTED, ModelReason.MODEL_MISSING)


def _of_tensors(
    folder: Path,
    needed: Mapping[str, Shape],
    optional: Mapping[str, Shape],
    weights: Weights,
) -> Iterator[Problem]:
    """Tensors that the model needs and the files do not hold, or hold in another form."""
    missing = [name for name in needed if name not in weights.tensors]
    misshapen = [
        (name, tensor.shape, shape)
        for name, shape in {**needed, **optional}.items()
        if (tensor := weights.tensors.get(name)) is not None and tensor.shape != shape
    ]
    if missing:
        yield Problem(
            str(folder),
            f"no {listed(missing)}",
            "what config.json asks for and no file holds would be random numbers",
            "the weights that belong to this config.json",
            ModelReason.TENSOR_MISSING,
        )
    if misshapen:
        name, stored, shape = misshapen[0]
        more = f" (and {len(misshapen) - 1} more tensors like it)" if len(misshapen) > 1 else ""
        yield Problem(
            f"{weights.files[name]}:{name}",
            f"shape {shown(list(stored))}",
            f"config.json makes it {shown(list(shape))}{more}",
            "the weights that belong to this config.json",
            ModelReason.TENSOR_SHAPE,
        )
    yield from _not_trainable(weights)


def _not_trainable(weights: Weights) -> Iterator[Problem]:
    others = [
        name
        for name, tensor in weights.tensors.items()
        if tensor.dtype not in FLOATS and name.endswith(".weight")
    ]
    if others:
        more = f" (and {len(others) - 1} more tensors like it)" if len(others) > 1 else ""
        yield Problem(
            f"{weights.files[others[0]]}:{others[0]}",
            weights.tensors[others[0]].dtype,
            f"a quantised checkpoint cannot be trained{more}",
            f"weights of {', '.join(FLOATS)}",
            ModelReason.QUANTISED,
        )


def _unexpected(folder: Path, known: Set[str], weights: Weights) -> Iterator[Problem]:
    others = sorted(name for name in weights.tensors.keys() - known if not name.endswith(_IGNORED))
    if others:
        yield Problem(
            str(folder),
            listed(others),
            "no layer of the model takes them",
            "fine where they belong to something else",
            ModelReason.TENSOR_UNEXPECTED,
        )
