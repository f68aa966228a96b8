"""Dropout that keeps no mask: the backward pass draws again what the forward pass drew."""

from __future__ import annotations

import torch
from torch import Tensor


class Dropout:
    """Drops a share of weights; another one of the same seed drops the same, call by call.

    A share of 0 draws nothing. The seed is of `draw_seed`, the device that of the weights.
    """

    def __init__(self, share: float, seed: int, device: torch.device) -> None:
        self._share = share
        self._generator = torch.Generator(device).manual_seed(seed) if share > 0.0 else None

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Multiply tensors of one shape by the same draw of 0 or 1 / (1 - share)."""
        if self._generator is None:
            return tensors
        left = 1.0 - self._share
        kept = torch.empty_like(tensors[0]).bernoulli_(left, generator=self._generator).div_(left)
        return tuple(tensor * kept for tensor in tensors)


def draw_seed() -> int:
    """A seed out of torch's global generator, whose state is part of a commit."""
    return int(torch.randint(2**62, ()))
