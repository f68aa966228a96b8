"""Folders whose weights are quantised, and what libraries that compute with them make of them."""

import json
import math
import re
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

FILE = "model.safetensors"
FP8 = torch.float8_e4m3fn
_LARGEST = 448.0
_GROUP = 8

Parts = dict[str, Tensor]
Made = tuple[Parts, Tensor]
"""The parts of a tensor by what stands behind its name, and the tensor that they stand for."""


def mxfp4(weight: Tensor) -> Made:
    """Any blocks and scales in the place of a stack (e, in, out)."""
    experts, inner, outer = weight.shape
    blocks = torch.randint(256, (experts, outer, inner // 32, 16), dtype=torch.uint8)
    scales = torch.randint(119, 127, (experts, outer, inner // 32), dtype=torch.uint8)
    whole = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    return {"_blocks": blocks, "_scales": scales}, whole


def fp8_blocks(weight: Tensor, height: int = 24, width: int = 40) -> Made:
    """Blocks that end beyond the last row and column, as in DeepSeek-V3's code."""
    rows, columns = weight.shape
    scales = torch.empty(math.ceil(rows / height), math.ceil(columns / width))
    values, whole = torch.empty_like(weight, dtype=FP8), torch.empty_like(weight)
    for row, column in torch.cartesian_prod(*map(torch.arange, scales.shape)).tolist():
        at = slice(row * height, (row + 1) * height), slice(column * width, (column + 1) * width)
        scales[row, column] = weight[at].abs().max() / _LARGEST
        values[at] = (weight[at] / scales[row, column]).to(FP8)
        whole[at] = values[at].float() * scales[row, column]
    return {"": values, "_scale_inv": scales}, whole


def fp8_tensor(weight: Tensor) -> Made:
    """One scale of a tensor, and one of what it is multiplied by, as Ministral 3 has them."""
    scale = weight.abs().max() / _LARGEST
    values = (weight / scale).to(FP8)
    parts = {"": values, "_scale_inv": scale, ":.activation_scale": torch.tensor(0.5)}
    return parts, values.float() * scale


def fp8_rows(weight: Tensor) -> Made:
    """A scale of each row in 16 bits: compressed-tensors' channels."""
    scale = (weight.abs().amax(1, keepdim=True) / _LARGEST).bfloat16()
    values = (weight / scale).to(FP8)
    return {"": values, "_scale": scale}, values.float() * scale.float()


def packed(weight: Tensor) -> Made:
    """Four bits a number and a scale of each group, as Kimi K2 Thinking has them."""
    with warnings.catch_warnings():  # it has torch import what torch itself calls old
        warnings.simplefilter("ignore")
        from compressed_tensors.compressors.pack_quantized.helpers import (
            pack_to_int32,
            unpack_from_int32,
        )
    groups = weight.unflatten(-1, (-1, _GROUP))
    scale = (groups.abs().amax(-1) / 7).bfloat16()
    values = (groups / scale[..., None]).round().clamp(-8, 7).to(torch.int8).flatten(-2)
    words = pack_to_int32(values, 4)
    again = unpack_from_int32(words, 4, weight.shape)
    assert torch.equal(again, values)
    whole = (again.float().unflatten(-1, (-1, _GROUP)) * scale.float()[..., None]).flatten(-2)
    shape = torch.tensor(weight.shape)
    return {"_packed": words, "_scale": scale, ":.weight_shape": shape}, whole


def _compressed(kind: str, **weights: object) -> dict[str, object]:
    groups = {"group_0": {"targets": ["Linear"], "weights": {"symmetric": True, **weights}}}
    return {"quant_method": "compressed-tensors", "format": kind, "config_groups": groups}


_MATRICES = r"(_proj|\.w\d|_a_proj_with_mqa)\.weight$"
FORMS: Mapping[str, tuple[Callable[[Tensor], Made], str, Mapping[str, object]]] = MappingProxyType(
    {
        "mxfp4": (mxfp4, r"experts\.(gate_up|down)_proj$", {"quant_method": "mxfp4"}),
        "fp8 blocks": (
            fp8_blocks,
            _MATRICES,
            {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [24, 40]},
        ),
        "fp8": (
            fp8_tensor,
            _MATRICES,
            {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None},
        ),
        "float-quantized": (
            fp8_rows,
            _MATRICES,
            _compressed("float-quantized", num_bits=8, type="float", strategy="channel"),
        ),
        "pack-quantized": (
            packed,
            _MATRICES,
            _compressed(
                "pack-quantized", num_bits=4, type="int", strategy="group", group_size=_GROUP
            ),
        ),
    }
)
"""What is made of which tensors, and what config.json says of it."""


def quantise(folder: Path, form: str, twin: Path) -> list[str]:
    """Quantise a folder beside a twin of the same numbers; answers the names of such tensors."""
    make, pattern, section = FORMS[form]
    weights, whole, names = {}, {}, []
    torch.manual_seed(1)
    for name, weight in load_file(folder / FILE).items():
        if not re.search(pattern, name):
            weights[name] = whole[name] = weight
            continue
        names.append(name)
        parts, whole[name] = make(weight.float())
        for end, part in parts.items():  # those behind a colon stand for the last part of the name
            weights[name.rpartition(".")[0] + end[1:] if end[:1] == ":" else name + end] = part
    shutil.copytree(folder, twin)
    save_file(whole, twin / FILE, {"format": "pt"})
    save_file(weights, folder / FILE, {"format": "pt"})
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"quantization_config": dict(section)}))
    assert names
    return names
