"""Offload: tensors whose bytes are in host memory while they are not computed with.

A tensor stays the same object: its storage, which all views share (FSDP2 keeps some), is emptied
and filled again. On a CPU bytes are copied and freed in the same way.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, UntypedStorage, nn
from torch.autograd.graph import saved_tensors_hooks

from ppojob_trainer.parallel.boxes import local_part, shard_like


class HostBuffers:
    """Host memory for tensors of a device; for sharded ones, for this rank's shards.

    Buffers are kept and reused: allocating pinned memory is slow.
    """

    def __init__(self) -> None:
        # By identity; the host's bytes. Storages are kept, so no identity is reused.
        self._buffers: dict[int, tuple[UntypedStorage, Tensor]] = {}

    def offload(self, tensors: Iterable[Tensor]) -> None:
        """Offload tensors; those already offloaded stay."""
        for storage in map(_storage, tensors):
            if size := storage.nbytes():
                if id(storage) not in self._buffers:
                    is_pinned = storage.device.type == "cuda"
                    buffer = torch.empty(size, dtype=torch.uint8, pin_memory=is_pinned)
                    self._buffers[id(storage)] = storage, buffer
                _, buffer = self._buffers[id(storage)]
                buffer.copy_(_bytes_of(storage))
                storage.resize_(0)

    def load(self, tensors: Iterable[Tensor]) -> None:
        """Load tensors back; those on the device stay."""
        for storage in map(_storage, tensors):
            if (buffer := self._offloaded(storage)) is not None:
                storage.resize_(buffer.nbytes)
                _bytes_of(storage).copy_(buffer)

    def view(self, tensor: Tensor) -> Tensor:
        """Return a tensor, or this rank's shard, where its bytes are, until it is moved."""
        part = local_part(tensor)
        buffer = self._offloaded(part.untyped_storage())
        if buffer is None:
            return part
        return buffer.view(part.dtype).as_strided(part.shape, part.stride(), part.storage_offset())

    def on_device(self, tensor: Tensor) -> Tensor:
        """Return a tensor on its device: itself, or a copy if it is offloaded."""
        if self._offloaded(_storage(tensor)) is None:
            return tensor
        return shard_like(tensor, self.view(tensor).to(tensor.device, copy=True))

    def _offloaded(self, storage: UntypedStorage) -> Tensor | None:
        """Return the bytes of an offloaded storage; None if it is on its device, or empty."""
        if storage.nbytes() or id(storage) not in self._buffers:
            return None
        return self._buffers[id(storage)][1]


class OffloadableWeights:
    """Weights of a model, which may be offloaded while others compute.

    Their gradients are freed with them: none is needed after an update.
    """

    def __init__(self, weights: Iterable[nn.Parameter], *, may_offload: bool) -> None:
        """Take weights on the device; `may_offload`: whether they are ever offloaded."""
        self.host = HostBuffers()
        self._weights: Sequence[nn.Parameter] = list(weights) if may_offload else []

    def load(self) -> None:
        """Load onto the device."""
        self.host.load(weight.detach() for weight in self._weights)

    def offload(self) -> None:
        """Offload, if the weights ever are."""
        for weight in self._weights:
            weight.grad = None
        self.host.offload(weight.detach() for weight in self._weights)

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """Have the weights on the device within the block."""
        self.load()
        try:
            yield
        finally:
            self.offload()


class OffloadableModels(OffloadableWeights):
    """Weights of several models, one of which is on the device; all, without offload."""

    def __init__(self, models: Sequence[OffloadableWeights]) -> None:
        super().__init__((), may_offload=False)
        self._models = models
        self.chosen = 0

    def choose(self, number: int) -> None:
        """Load one model, and offload the one before it."""
        if number != self.chosen:
            self._models[self.chosen].offload()
        self.chosen = number
        self._models[number].load()

    def load(self) -> None:
        """Do nothing: a model is loaded when it is chosen."""

    def offload(self) -> None:
        """Offload, if the weights ever are."""
        self._models[self.chosen].offload()


def saved_on_host() -> AbstractContextManager[object]:
    """Offload to host memory the activations that a forward pass in the block saves."""

    def pack(saved: Tensor) -> tuple[torch.device, Tensor]:
        buffer = torch.empty_like(saved, device="cpu", pin_memory=saved.is_cuda)
        return saved.device, buffer.copy_(saved)

    def unpack(packed: tuple[torch.device, Tensor]) -> Tensor:
        device, buffer = packed
        return buffer.to(device)

    return saved_tensors_hooks(pack, unpack)


def _storage(tensor: Tensor) -> UntypedStorage:
    return local_part(tensor).untyped_storage()


def _bytes_of(storage: UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
