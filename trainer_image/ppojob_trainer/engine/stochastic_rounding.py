"""Stochastic rounding to bfloat16, for optimizer moments.

With a decay of 0.999 a second moment changes by less than half the distance of bfloat16 neighbours,
so rounding to nearest would never decrease it. Stochastic rounding is unbiased (Gupta et al. 2015,
arXiv:1502.02551).

The random bits are a hash of the tensor's name, the update and the element's index in the whole
tensor, so repeated steps and all layouts round alike.
"""

import hashlib
from typing import Final

import torch
from torch import Tensor

from ppojob_trainer.parallel.boxes import Box

_FACTOR: Final = 0x045D9F3B
_WORD: Final = 0xFFFF_FFFF
_LOST_BITS: Final = 16
_AT_ONCE: Final = 2**20
"""Elements that are rounded at once."""


def round_into(target: Tensor, values: Tensor, box: Box, what: str) -> None:
    """Round float32 values stochastically into a bfloat16 tensor.

    Both are the shard `box` of a tensor; `what` names the tensor and the update.
    """
    for plain, own in box.plain():
        _round_plain(target[own], values[own], plain, what)


def _round_plain(target: Tensor, values: Tensor, box: Box, what: str) -> None:
    key = int.from_bytes(hashlib.sha256(what.encode()).digest()[:4], "little")
    if not box.shape:
        box, target, values = Box((1,), (0,), (1,)), target[None], values[None]
    inner = max(1, box.numel // max(1, box.local_shape[0]))
    rows = max(1, _AT_ONCE // inner)
    for first in range(0, box.local_shape[0], rows):
        last = min(first + rows, box.local_shape[0])
        start = (box.start[0] + first, *box.start[1:])
        places = _places(Box(box.shape, start, (box.start[0] + last, *box.stop[1:])), values.device)
        bits = values[first:last].view(torch.int32)
        up = _hashed(places ^ key).to(torch.int32) & ((1 << _LOST_BITS) - 1)
        kept = (bits + up) >> _LOST_BITS << _LOST_BITS
        target[first:last] = kept.view(torch.float32)


def _places(box: Box, device: torch.device) -> Tensor:
    """Return (box.local_shape) int64: each element's index in the whole tensor, modulo 2^32."""
    places = torch.zeros((), dtype=torch.int64, device=device)
    for size, start, stop in zip(box.shape, box.start, box.stop, strict=True):
        along = torch.arange(start, stop, dtype=torch.int64, device=device)
        places = places[..., None] * size + along
    return places & _WORD


def _hashed(words: Tensor) -> Tensor:
    """Hash 32-bit words, held in int64, so that each output bit depends on all input bits."""
    for _ in range(2):
        words = ((words >> 16) ^ words) * _FACTOR & _WORD
    return (words >> 16) ^ words
