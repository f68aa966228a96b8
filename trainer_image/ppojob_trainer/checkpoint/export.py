"""Export of the trained model as a Hugging Face folder that transformers and vLLM load.

The same weights give the same bytes. An export is written to a temporary folder and renamed, so a
folder named ``export`` is always complete.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from huggingface_hub import StateDictSplit, split_torch_state_dict_into_shards
from torch import Tensor

from ppojob_trainer import durable
from ppojob_trainer.checkpoint.adapter_folder import FILE_POINT, AdapterForm, write_adapters
from ppojob_trainer.checkpoint.tensors import join, stored_dtype, write_tensors
from ppojob_trainer.checkpoint.untrained_parts import UntrainedParts
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.json_value import Json
from ppojob_trainer.models.adapter_files import ADAPTER_FOLDER
from ppojob_trainer.models.architectures import HEAD, saved_weights, sizes_of
from ppojob_trainer.models.config_changes import changed_document
from ppojob_trainer.models.config_files import layers_name
from ppojob_trainer.models.kinds import CLASSIFIERS, POLICY, SCORE_BIAS, SCORE_WEIGHT, ModelKind
from ppojob_trainer.models.lora import Adapter
from ppojob_trainer.models.quantised import without_quantised
from ppojob_trainer.parallel.boxes import AllGather, detached

EXPORT_POINT: Final = durable.point("export", *durable.RENAME_ACTS)
CLEAR_POINT: Final = durable.point("export.clear", *durable.REMOVE_ACTS)

MAX_FILE_BYTES: Final = 5 << 30
_NO_ADAPTERS: Final[Mapping[str, Adapter]] = {}
_NO_CHANGES: Final[Mapping[str, Json]] = {}

_TOKENIZER_FILES: Final = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.model",
    "*.tiktoken",
    "chat_template.*",
)
_MODEL_FILES: Final = (
    "generation_config.json",
    "*processor_config.json",
    "spk_dict.pt",  # voices of Qwen2.5-Omni
    "*.py",
    "LICENSE*",
    "NOTICE*",
)


def export_model(
    target: Path | None,
    tensors: Iterable[tuple[str, Tensor]],
    *,
    model_folder: Path,
    dtype: torch.dtype,
    tokenizer_folder: Path | None = None,
    chat_template: str | None = None,
    max_file_bytes: int = MAX_FILE_BYTES,
    adapters: Mapping[str, Adapter] = _NO_ADAPTERS,
    kind: ModelKind = POLICY,
    overrides: Mapping[str, Json] = _NO_CHANGES,
    wrap_join: Callable[[AllGather], AllGather] = lambda join: join,
) -> None:
    """Write a model folder: with LoRA the merged weights, and the adapters in a subfolder.

    A collective if the model is sharded: weights are all-gathered one at a time, and one rank
    writes. Untrained parts are copied from the initial folder (`UntrainedParts`).

    Args:
        target: the folder, replaced as a whole; None for a rank that only sends its shards.
        tensors: Hugging Face names and tensors; tied ones once.
        model_folder: the initial model: its config and generation config are taken over.
        dtype: of the stored weights; floating tensors are converted one at a time.
        tokenizer_folder: the tokenizer's, if not ``model_folder``.
        chat_template: the job's own template (Jinja text), in place of the tokenizer's.
        max_file_bytes: the weights are split into files of at most this (one tensor at least).
        adapters: by the names of the weights that they adapt.
        kind: of the result; its head, and layers trained whole, are saved with adapters.
        overrides: the job's changes of the configuration.
        wrap_join: wraps a `Join` so that all ranks get the result of those that hold a tensor.

    Raises:
        StorageError: the disk refused; an older export stays.
        ConfigError: ``model_folder`` lacks config.json, or weights that are taken over.
    """
    given = dict(tensors)
    untrained = UntrainedParts.of(model_folder, scores=SCORE_WEIGHT in given)
    trained = untrained.in_files(given)
    frozen = untrained.frozen(trained)
    named = trained | frozen
    plain = wrap_join(join)
    changed = {untrained.name_in_files(name): adapter for name, adapter in adapters.items()}
    merge = _but(frozen, untrained, wrap_join(_merging(changed)))
    loras = [adapter.lora for adapter in adapters.values()]
    whole = {SCORE_WEIGHT, SCORE_BIAS, *(saved_weights(loras[0]) if loras else ())}
    head = {name: tensor for name, tensor in named.items() if name in whole}
    began = _read_config(model_folder)
    form = AdapterForm(model_folder, kind, layers_name(began), is_tied=HEAD not in named)
    if target is None:
        for names in _split(named, dtype, max_file_bytes).filename_to_tensors.values():
            held = {name: named[name] for name in names if name not in frozen}
            write_tensors(None, held, dtype=dtype, join=merge)
        if adapters:
            write_adapters(None, adapters, head, plain, form)
        return
    with _replacing(target) as temporary:
        durable.make_folder(temporary, parents=True)
        config = _config(began, dtype, kind, overrides, has_mtp=bool(untrained.mtp))
        _write_settings(temporary, config, model_folder, tokenizer_folder, chat_template)
        _write_weights(temporary, named, dtype, max_file_bytes, merge)
        if adapters:
            write_adapters(temporary / ADAPTER_FOLDER, adapters, head, plain, form)


def export_adapters(
    target: Path,
    adapters: Mapping[str, Adapter],
    base: str,
    head: Mapping[str, Tensor],
    kind: ModelKind = POLICY,
) -> None:
    """Write a folder of adapters alone, like that which `export_model` adds to merged weights.

    `head` is the trained head of a classifier, or layers of a language model trained whole. Raises
    ConfigError if ``base`` has no readable config.json.
    """
    with _replacing(target) as temporary:
        folder, sizes = Path(base), sizes_of(base)
        is_tied = sizes is not None and sizes.is_tied
        form = AdapterForm(folder, kind, layers_name(_read_config(folder)), is_tied=is_tied)
        write_adapters(temporary, adapters, head, join, form)


@contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    """Replace a folder atomically by the one that the block writes."""
    temporary = target.with_name(f".{target.name}.aside")
    durable.remove_tree(temporary, CLEAR_POINT)
    yield temporary
    old = target.with_name(f".{target.name}.old")
    durable.remove_tree(old, CLEAR_POINT)
    if target.exists():
        durable.rename(target, old, EXPORT_POINT)
    durable.rename(temporary, target, EXPORT_POINT)
    durable.remove_tree(old, CLEAR_POINT)


def _split(
    tensors: Mapping[str, Tensor], dtype: torch.dtype, max_file_bytes: int
) -> StateDictSplit:
    """Split tensors into files, in order; a tensor above the limit gets a file of its own."""
    stored = {
        name: torch.empty(tensor.shape, dtype=stored_dtype(name, tensor, dtype), device="meta")
        for name, tensor in sorted(tensors.items())
    }
    return split_torch_state_dict_into_shards(stored, max_shard_size=max_file_bytes)


def _write_weights(
    folder: Path,
    tensors: Mapping[str, Tensor],
    dtype: torch.dtype,
    max_file_bytes: int,
    join: AllGather,
) -> None:
    split = _split(tensors, dtype, max_file_bytes)
    metadata = {"format": "pt"}  # transformers refuses a file without this metadata
    for file, names in split.filename_to_tensors.items():
        part = {name: tensors[name] for name in names}
        write_tensors(folder / file, part, dtype=dtype, metadata=metadata, join=join)
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        durable.write_file(folder / "model.safetensors.index.json", _json(index), FILE_POINT)


def _config(
    began: dict[str, Any],
    dtype: torch.dtype,
    kind: ModelKind,
    overrides: Mapping[str, Json],
    *,
    has_mtp: bool,
) -> bytes:
    name = str(dtype).removeprefix("torch.")
    config: dict[str, Any] = changed_document(without_quantised(began), overrides)
    # transformers 5 reads the first, 4 and vLLM's readers of old folders the second.
    config["dtype"] = name
    if "torch_dtype" in config:
        config["torch_dtype"] = name
    if config.get("num_nextn_predict_layers") and not has_mtp:
        config["num_nextn_predict_layers"] = 0
    if kind.made_as in CLASSIFIERS:
        names = config.get("architectures") or ["Model"]
        family = str(names[0]).partition("For")[0].removesuffix("LMHeadModel")
        config["architectures"] = [f"{family}{kind.made_as}"]
        config |= {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    return _json(config)


def _write_settings(
    target: Path,
    config: bytes,
    model_folder: Path,
    tokenizer_folder: Path | None,
    chat_template: str | None,
) -> None:
    """Write everything of an export but its weights."""
    durable.write_file(target / "config.json", config, FILE_POINT)
    _copy(model_folder, target, _MODEL_FILES)
    _copy(tokenizer_folder or model_folder, target, _TOKENIZER_FILES)
    if chat_template is not None:
        durable.write_file(target / "chat_template.jinja", chat_template.encode(), FILE_POINT)


def _json(document: Mapping[str, object]) -> bytes:
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False).encode() + b"\n"


def _copy(source: Path, target: Path, patterns: tuple[str, ...]) -> None:
    for path in sorted({path for pattern in patterns for path in source.glob(pattern)}):
        if path.is_file():
            durable.write_file(target / path.name, path.read_bytes(), FILE_POINT)


def _merging(adapters: Mapping[str, Adapter]) -> AllGather:
    """Return a `Join` that merges adapters in float32, and leaves other weights."""

    def merged(name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        if name not in adapters:
            return join(name, tensor, dtype)
        return adapters[name].merged(detached(tensor, dtype)).to(dtype)

    return merged


def _read_config(model_folder: Path) -> dict[str, Any]:
    path = model_folder / "config.json"
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: got no model configuration: {error}") from error
    return found


def _but(frozen: Mapping[str, Tensor], untrained: UntrainedParts, merge: AllGather) -> AllGather:
    """Return a `Join` that only dequantizes frozen tensors, and uses `merge` for others."""

    def stored(name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        if name not in frozen:
            return merge(name, tensor, dtype)
        return join(name, untrained.dequantised(name, tensor), dtype)

    return stored
