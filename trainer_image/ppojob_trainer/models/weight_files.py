"""Weight files of a model's folder: which to read, and whether they are complete."""

import os
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Final

from safetensors import SafetensorError, safe_open

from ppojob_api.problem import ABSENT, Problem, printable, shown
from ppojob_trainer.json_value import Json
from ppojob_trainer.models.config_files import TOWER, WHOLE_NAMES, read_config
from ppojob_trainer.models.families import FAMILIES
from ppojob_trainer.models.problems import ModelReason, read_object, unreadable
from ppojob_trainer.models.quantised import fold
from ppojob_trainer.models.weights import StoredTensor, Weights

SINGLE_FILE: Final = "model.safetensors"
INDEX_FILE: Final = "model.safetensors.index.json"
FLOATS: Final = ("F16", "BF16", "F32", "F64")
"""Dtypes that training can start from, as the format writes them."""

_LISTED: Final = 5
_OF_GPT2: Final = ("h.", "wte.", "wpe.", "ln_f.")
"""Prefix that the hub's GPT-2 files lack."""
_COMPUTED: Final = (
    *("rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached"),
    *(".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias"),
)
"""Suffixes of buffers, not weights: RoPE frequencies, and masks in old GPT-2 and Pythia folders."""
_POINTER: Final = b"version https://git-lfs.github.com/spec/"
_PICKLES: Final = (".bin", ".pt", ".pth", ".ckpt")
_CONVERT: Final = (
    "safetensors, written once where you trust the file: "
    "AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(OTHER)"
)


class BadHeader(Exception):  # noqa: N818  the header is bad
    """A file is no safetensors file, or is truncated."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(str(problem))


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Read the tensors of a safetensors file's header by name; raises BadHeader."""
    try:
        with path.open("rb") as file:
            is_pointer = file.read(len(_POINTER)) == _POINTER
    except OSError as error:
        raise BadHeader(unreadable(path, error)) from None
    if is_pointer:
        got, why = "a pointer file", "Git LFS left it in place of the weights"
        allowed = "the weights themselves: fetch the content (git lfs pull)"
        raise BadHeader(Problem(str(path), got, why, allowed, ModelReason.POINTER_FILE))
    try:
        with safe_open(path, framework="np") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  no mapping
            return {
                name: StoredTensor(stored.get_dtype(), tuple(stored.get_shape()))
                for name, stored in slices.items()
            }
    except (SafetensorError, OSError) as error:
        got, why = "no whole file", printable(str(error))
        allowed = "a whole safetensors file; fetch or write it again"
        bad = Problem(str(path), got, why, allowed, ModelReason.BAD_SAFETENSORS)
        raise BadHeader(bad) from None


def read_weights(folder: Path) -> Weights:
    """Read the headers of all files that the loader would read; no tensor is read."""
    weights = Weights()
    config = read_config(folder / "config.json")
    model_type = "" if isinstance(config, Problem) else str(config.get("model_type"))
    single, index = folder / SINGLE_FILE, folder / INDEX_FILE
    if os.path.lexists(single):
        _add(weights, single, model_type)
        _warn_of_others(weights, folder, {SINGLE_FILE})
    elif os.path.lexists(index):
        _read_shards(weights, folder, index, model_type)
    else:
        weights.problems.append(_no_weights(folder))
    if not isinstance(config, Problem):
        fold(weights, config)
    return weights


def _add(weights: Weights, path: Path, model_type: str) -> None:
    try:
        found = read_header(path)
    except BadHeader as bad:
        weights.problems.append(bad.problem)
        return
    for stored, tensor in found.items():
        name = own_name(stored, model_type)
        if name.endswith(_COMPUTED):
            continue
        tensor = replace(tensor, shape=tensor.shape or (1,))  # 0-dimensional tensors are held so
        weights.tensors[name], weights.files[name], weights.stored[name] = tensor, path, stored


def own_name(stored: str, model_type: str = "") -> str:
    """Return the name here of a weight, by its name in a file of a (language) model of this type.

    Without a type only the names of parts of multimodal models are known.
    """
    for beginning, own in WHOLE_NAMES.items():
        if stored.startswith(beginning):
            stored = own + stored.removeprefix(beginning)
            break
    if stored.startswith(TOWER):
        return stored
    if model_type == "gpt2" and stored.startswith(_OF_GPT2):
        stored = f"transformer.{stored}"
    family = FAMILIES.get(model_type)
    for theirs, own in family.file_names.items() if family else ():
        stored = stored.replace(theirs, own)
    return stored


def listed(names: list[str]) -> str:
    """Return the first of many names, with their number."""
    head = ", ".join(names[:_LISTED])
    return head if len(names) <= _LISTED else f"{head} and {len(names) - _LISTED} more"


def _read_shards(weights: Weights, folder: Path, index: Path, model_type: str) -> None:
    read = read_object(index, ModelReason.BAD_INDEX)
    shards = _shards(index, read.get("weight_map")) if isinstance(read, dict) else read
    if isinstance(shards, Problem):
        weights.problems.append(shards)
        return
    for name in sorted(shards):
        path = folder / name
        if os.path.isfile(path):
            _add(weights, path, model_type)
            continue
        got = "a link to nothing" if path.is_symlink() else "no such file"
        why = f"{index.name} expects {listed(shards[name])} in it"
        allowed = "all shards of the model"
        weights.problems.append(Problem(str(path), got, why, allowed, ModelReason.SHARD_MISSING))
    _warn_of_others(weights, folder, set(shards))


def _shards(index: Path, weight_map: Json) -> dict[str, list[str]] | Problem:
    """Return the names of shards, each with its tensors."""
    where = f"{index}:weight_map"
    if not isinstance(weight_map, dict) or not weight_map:
        got = ABSENT if weight_map is None else shown(weight_map)
        why = "it says which shard holds a tensor"
        return Problem(where, got, why, "an object of tensor names", ModelReason.BAD_INDEX)
    shards: dict[str, list[str]] = {}
    for tensor, name in weight_map.items():
        # A name with folders in it could escape the model's.
        if not isinstance(name, str) or PurePath(name).name != name:
            why, allowed = "it is no name of a file", "the name of a shard in the same folder"
            return Problem(f"{where}.{tensor}", shown(name), why, allowed, ModelReason.BAD_INDEX)
        shards.setdefault(name, []).append(tensor)
    return shards


def _warn_of_others(weights: Weights, folder: Path, read: set[str]) -> None:
    names = {path.name for path in folder.glob("*.safetensors")}
    others = sorted(names - read)
    if os.path.exists(folder / INDEX_FILE) and SINGLE_FILE in read:
        others.append(INDEX_FILE)
    if others:
        got, why = listed(others), f"not read beside {listed(sorted(read))}"
        allowed, reason = "fine where they are leftovers", ModelReason.SHARD_UNLISTED
        weights.warnings.append(Problem(str(folder), got, why, allowed, reason))


def _no_weights(folder: Path) -> Problem:
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError:
        names = []
    pickles = [name for name in names if name.endswith(_PICKLES)]
    if pickles:
        why = "pickle, which can run any code when it is read"
        return Problem(str(folder), listed(pickles), why, _CONVERT, ModelReason.PICKLE)
    got, why = listed(names) or "an empty folder", "there are no weights among these"
    allowed = f"{SINGLE_FILE}, or {INDEX_FILE} with its shards"
    return Problem(str(folder), got, why, allowed, ModelReason.WEIGHTS_MISSING)
