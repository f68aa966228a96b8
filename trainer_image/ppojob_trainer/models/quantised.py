"""Quantized checkpoints: their formats, and which file tensors make up a weight.

They are trained unquantized: `stored_tensors` dequantizes while reading. Does not import torch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ppojob_api.problem import Problem, shown
from ppojob_trainer.json_value import Json
from ppojob_trainer.models.problems import ModelReason
from ppojob_trainer.models.weights import Quantised, Weights

SECTION: Final = "quantization_config"
MXFP4: Final = "mxfp4"
PACKED: Final = "pack-quantized"
BITS: Final = 4
"""Bits per element of the packed formats: eight in 32 bits, two in a byte."""

_FP8: Final = "fp8"
_COMPRESSED: Final = "compressed-tensors"
_FLOATS: Final = ("F32", "BF16", "F16")

_Shape = tuple[int, ...]
_Block = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Form:
    """How files store a quantized tensor."""

    values: str  # suffix of the quantized values' name
    scales: tuple[str, ...]  # suffixes of the scales' names; any of them
    ignored: tuple[str, ...]  # suffixes of tensors only used by quantized kernels
    dtype: str  # of the values, as the format writes it
    scale_dtypes: tuple[str, ...]
    shape: Callable[[_Shape], _Shape] = tuple  # from the values' shape to the tensor's


def _of_mxfp4(blocks: _Shape) -> _Shape:
    """(e, out, blocks, bytes) in files, (e, in, out) in the model."""
    *experts, out, count, size = blocks
    return (*experts, count * size * 2, out)


def _of_packed(words: _Shape) -> _Shape:
    return (*words[:-1], words[-1] * 32 // BITS)


FORMS: Final = {
    MXFP4: Form("_blocks", ("_scales",), (), "U8", ("U8",), _of_mxfp4),
    _FP8: Form(
        "", ("_scale_inv", "_scale"), (".activation_scale", ".input_scale"), "F8_E4M3", _FLOATS
    ),
    "float-quantized": Form("", ("_scale",), (".input_scale",), "F8_E4M3", _FLOATS),
    PACKED: Form("_packed", ("_scale",), (".weight_shape",), "I32", _FLOATS, _of_packed),
}
"""By `quant_method` of `quantization_config`, or by `format` of compressed-tensors.

gpt-oss; DeepSeek-V3, MiniMax-M2, Qwen3-FP8 and Ministral 3; folders of llm-compressor.
"""
_WANTED: Final = (
    f"{MXFP4}, {_FP8}, {_COMPRESSED} of symmetric float-quantized or {BITS}-bit {PACKED} "
    "weights, or the weights it was made from"
)


def form_of(config: Mapping[str, Json]) -> tuple[str, _Block | None] | None:
    """Return a config.json's format, and the (rows, columns) of its quantization block.

    None if unquantized or unsupported: see `check_quantised`. Without a block a scale is per tensor
    or per row.
    """
    section = config.get(SECTION)
    if not isinstance(section, dict):
        return None
    method = section.get("quant_method")
    if method == MXFP4:
        return MXFP4, None
    if method == _FP8:
        block = section.get("weight_block_size")
        return (_FP8, _block(block)) if block is None or _block(block) else None
    return _compressed(section) if method == _COMPRESSED else None


def check_quantised(config: Mapping[str, Json], path: Path, *, is_served: bool) -> list[Problem]:
    """Refuse a folder in an unsupported quantization format; in any if vLLM's server reads it."""
    section = config.get(SECTION)
    if section is None or (form_of(config) is not None and not is_served):
        return []
    got = section.get("quant_method") if isinstance(section, dict) else section
    why, allowed = "this quantization is not supported", _WANTED
    if is_served:
        why, allowed = "a judge's weights must not be quantised", "the weights it was made from"
    return [Problem(f"{path}:{SECTION}", shown(got), why, allowed, ModelReason.QUANTISED)]


def warn_of_quantised(weights: Weights, path: Path) -> list[Problem]:
    """Warn that a folder's weights are trained unquantized."""
    if (kind := weights.form) is None:
        return []
    why = "weights are dequantised while they are loaded, trained and exported in the job's dtype"
    allowed = "fine where that fits: memory is that of the unquantised model"
    return [Problem(f"{path}:{SECTION}", shown(kind), why, allowed, ModelReason.QUANTISED)]


def without_quantised(config: Mapping[str, Json]) -> dict[str, Json]:
    """Return a config.json as it is on disk, without its quantization."""
    found = {name: value for name, value in config.items() if name != SECTION}
    if isinstance(text := found.get("text_config"), dict):
        found["text_config"] = without_quantised(text)
    return found


def fold(weights: Weights, config: Mapping[str, Json]) -> None:
    """Replace the parts of each quantized tensor by one tensor of its own name and shape."""
    if (found := form_of(config)) is None:
        return
    kind, block = found
    form, parts = FORMS[kind], dict(weights.tensors)
    for part, tensor in parts.items():
        if part.endswith(form.ignored):
            _pop(weights, part)
        if tensor.dtype != form.dtype or not part.endswith(form.values):
            continue
        name = part.removesuffix(form.values)
        scale = next((name + end for end in form.scales if name + end in parts), None)
        if scale is None or parts[scale].dtype not in form.scale_dtypes:
            continue  # which the dtype check refuses
        shape = form.shape(tensor.shape)
        if kind == MXFP4:
            own_block = (1, 1) if parts[scale].shape == tensor.shape[:-1] else None
        else:
            own_block = _block_by_scales(shape, parts[scale].shape, block)
        if own_block is None:
            weights.problems.append(_misfit(weights, scale, tensor.shape))
            continue
        (path, stored), scales = _pop(weights, part), _pop(weights, scale)
        weights.tensors[name] = replace(tensor, dtype="BF16", shape=shape)
        weights.files[name], weights.stored[name] = path, stored.removesuffix(form.values)
        weights.quantised[name] = Quantised(kind, (path, stored), scales, own_block)


def _block_by_scales(shape: _Shape, scales: _Shape, block: _Block | None) -> _Block | None:
    """Return the quantization block of a tensor; None if the shape of the scales does not fit."""
    rows, columns = shape[-2:] if len(shape) > 1 else (1, *shape)
    grid = scales[-2:] if len(scales) > 1 else (1, *scales)
    if scales[:-2] not in ((), shape[:-2]):
        return None
    for height, width in filter(None, (block, (rows, columns), (1, columns))):
        if grid == (-(-rows // height), -(-columns // width)):
            return height, width
    return None


def _pop(weights: Weights, name: str) -> tuple[Path, str]:
    del weights.tensors[name]
    return weights.files.pop(name), weights.stored.pop(name)


def _misfit(weights: Weights, scale: str, values: _Shape) -> Problem:
    return Problem(
        f"{weights.files[scale]}:{weights.stored[scale]}",
        f"shape {shown(list(weights.tensors[scale].shape))}",
        f"they are no scales of {shown(list(values))} by config.json's {SECTION}",
        "the weights that belong to this config.json",
        ModelReason.TENSOR_SHAPE,
    )


def _compressed(section: Mapping[str, Json]) -> tuple[str, _Block | None] | None:
    """As `form_of`, of a section of compressed-tensors, all of whose groups are alike."""
    kind, groups = section.get("format"), section.get("config_groups")
    if kind not in ("float-quantized", PACKED) or not isinstance(groups, dict) or not groups:
        return None
    bits, type_ = (BITS, "int") if kind == PACKED else (8, "float")
    wanted = {"num_bits": bits, "type": type_}
    blocks: set[_Block | None] = set()
    for group in groups.values():
        own = group.get("weights") if isinstance(group, dict) else None
        if not isinstance(own, dict) or not own.get("symmetric", True) or own.get("actorder"):
            return None
        if any(own.get(name) != value for name, value in wanted.items()):
            return None
        size = own.get("group_size")
        block = own.get("block_structure") or ([1, size] if size else None)
        if block is not None and _block(block) is None:
            return None
        blocks.add(_block(block))
    return (str(kind), *blocks) if len(blocks) == 1 else None  # type: ignore[return-value]


def _block(value: Json) -> _Block | None:
    match value:
        case [int(rows), int(columns)] if rows > 0 and columns > 0:
            return rows, columns
    return None
