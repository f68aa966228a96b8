"""Tensors read from a model's files, whole or sharded, and dequantized.

An element is its quantized value times its scale in float32, rounded once by the caller. So the
bits of an element do not depend on the shard.
"""

from pathlib import Path
from typing import Any, Final

import torch
from safetensors import safe_open
from torch import Tensor

from ppojob_trainer.models.quantised import BITS, MXFP4, PACKED
from ppojob_trainer.models.weights import Quantised, Weights
from ppojob_trainer.parallel.boxes import Box

_FP4: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_SIGN: Final = 8
_BIAS: Final = 127
_PER_WORD: Final = 32 // BITS


def read_tensor(weights: Weights, name: str) -> Tensor:
    """Read a whole tensor; a 0-dimensional one gets a dimension."""
    return read_part(weights, name, Box.whole(weights.tensors[name].shape))


def read_part(weights: Weights, name: str, box: Box) -> Tensor:
    """Read a shard of a tensor, float32 if it is quantized; ValueError if it has another shape."""
    if (shape := weights.tensors[name].shape) != box.shape:
        raise ValueError(f"{weights.stored[name]} has shape {shape}: the model needs {box.shape}")
    if box.numel == 0:
        return torch.empty(box.local_shape)
    if (quantised := weights.quantised.get(name)) is not None:
        return box.assemble(lambda plain: _dequantised(quantised, plain))
    file, stored = weights.files[name], weights.stored[name]
    return box.assemble(lambda plain: _read(file, stored, plain.slices))


def _read(path: Path, name: str, slices: tuple[slice, ...] = ()) -> Tensor:
    with safe_open(path, framework="pt") as file:
        stored: Any = file.get_slice(name)
        if not stored.get_shape():  # a 0-dimensional tensor is not sharded
            stored = file.get_tensor(name)[None]
        part: Tensor = stored[slices or slice(None)]
        return part.contiguous()


def _dequantised(tensor: Quantised, box: Box) -> Tensor:
    if tensor.form == MXFP4:
        return _of_mxfp4(tensor, box)
    if tensor.form == PACKED:
        values = _unpacked(tensor, box)
    else:
        values = _read(*tensor.values, box.slices).to(torch.float32)
    scales = _read(*tensor.scales).to(torch.float32)
    if scales.dim() < len(box.shape):  # one scale for all
        scales = scales.reshape(1, -1)[(None,) * (len(box.shape) - 2)]
    if len(box.shape) == 1:
        return values * scales.flatten()
    *lead, rows, columns = (
        torch.arange(start, stop) for start, stop in zip(box.start, box.stop, strict=True)
    )
    for dimension, own in enumerate(lead):
        if scales.shape[dimension] > 1:
            scales = scales.index_select(dimension, own)
    height, width = tensor.block
    return values * scales[..., (rows // height)[:, None], columns // width]


def _of_mxfp4(tensor: Quantised, box: Box) -> Tensor:
    """Dequantize MXFP4: two elements a byte, low bits first, one exponent per block of bytes.

    Files have (e, out, blocks, bytes), the model (e, in, out). Sources: OCP Microscaling Formats
    1.0, for e2m1 and e8m0; transformers' `integrations/mxfp4.py`, `_convert_moe_packed_tensors`.
    """
    experts, inner, outer = box.slices
    with safe_open(tensor.values[0], framework="pt") as file:
        size = 2 * file.get_slice(tensor.values[1]).get_shape()[-1]
    first, last = inner.start // size, -(-inner.stop // size)
    at = (experts, outer, slice(first, last))
    blocks, scales = _read(*tensor.values, at), _read(*tensor.scales, at)
    table = torch.tensor([*_FP4, *(-value for value in _FP4)])
    values = table[torch.stack([blocks & (2 * _SIGN - 1), blocks >> BITS], dim=-1).int()]
    values = torch.ldexp(values.flatten(-2), scales.to(torch.int32)[..., None] - _BIAS).flatten(-2)
    own = values[..., inner.start - first * size : inner.stop - first * size]
    return own.mT.contiguous()


def _unpacked(tensor: Quantised, box: Box) -> Tensor:
    """Unpack eight elements per word, from the lowest bits on, each plus 8.

    Source: compressed-tensors, `compressors/pack_quantized`, `unpack_from_int32`.
    """
    *rest, columns = box.slices
    first, last = columns.start // _PER_WORD, -(-columns.stop // _PER_WORD)
    words = _read(*tensor.values, (*rest, slice(first, last)))
    shifts = torch.arange(0, 32, BITS, dtype=torch.int32)
    values = ((words[..., None] >> shifts & (2 * _SIGN - 1)) - _SIGN).flatten(-2)
    begin = columns.start - first * _PER_WORD
    return values[..., begin : begin + columns.stop - columns.start].to(torch.float32)
