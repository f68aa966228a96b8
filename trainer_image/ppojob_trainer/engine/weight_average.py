"""EMA of a model's weights over its updates; training does not depend on it."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ppojob_trainer.parallel.boxes import local_part, shard_like
from ppojob_trainer.parallel.offload import HostBuffers


class WeightAverage:
    """`a <- d a + (1 - d) w` after every update (Polyak and Juditsky 1992, doi:10.1137/0330046).

    In float32, sharded as the weights, and offloaded if the moments are.
    """

    def __init__(
        self, weights: Mapping[str, nn.Parameter], decay: float, host: HostBuffers | None
    ) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._weights = weights
        self._decay = decay
        self._host = host

    def begin(self) -> None:
        """Start with the weights, which must be on their device."""
        for name, weight in self._weights.items():
            self._store(name, local_part(weight.detach()))

    def load(self, parts: Mapping[str, Tensor]) -> None:
        """Load copies of this rank's shards of a checkpoint's `tensors`."""
        for name in self._weights:
            self._store(name, parts[name])

    def update(self) -> None:
        for name, weight in self._weights.items():
            average = self.tensors[name]
            if self._host is not None:
                self._host.load([average])
            own = local_part(weight.detach()).float()
            local_part(average).lerp_(own, 1.0 - self._decay)
            if self._host is not None:
                self._host.offload([average])

    def _store(self, name: str, part: Tensor) -> None:
        weight = self._weights[name]
        own = part.to(weight.device, torch.float32, copy=True)
        self.tensors[name] = shard_like(weight, own)
        if self._host is not None:
            self._host.offload([self.tensors[name]])
