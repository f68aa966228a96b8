"""Rounding to bfloat16 by chance, so that what is lost at one time is made up for at others.

A second moment with a decay of 0.999 changes by a thousandth in a step, and half the distance of
two numbers of bfloat16 is more: rounded to the nearest it would never fall. Rounded up as often as
it lies above the lower neighbour, it is right on average (Gupta et al. 2015, arXiv:1502.02551).

The chance is no state: it is a hash of what is rounded, when, and at which place of the whole
tensor. So a step that is done again rounds alike, and so does every layout.
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
"""Elements, as whole rows, whose chances exist at one time."""


def round_into(target: Tensor, values: Tensor, box: Box, what: str) -> None:
    """Write float32 values into a tensor of bfloat16, each up or down to a number next to it.

    Both are the part `box` of a tensor; `what` names the tensor and the time.
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
    """(box.local_shape) int64: the number of each element in the whole tensor, up to 32 bits."""
    places = torch.zeros((), dtype=torch.int64, device=device)
    for size, start, stop in zip(box.shape, box.start, box.stop, strict=True):
        along = torch.arange(start, stop, dtype=torch.int64, device=device)
        places = places[..., None] * size + along
    return places & _WORD


def _hashed(words: Tensor) -> Tensor:
    """Words of 32 bits to words in which each bit depends on all of them; in int64."""
    for _ in range(2):
        words = ((words >> 16) ^ words) * _FACTOR & _WORD
    return (words >> 16) ^ words
