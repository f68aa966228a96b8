"""Tensors whose bytes lie in host memory while nobody computes with them.

A tensor stays the object that it is, whoever holds it: its storage is emptied, which all views of
it share (FSDP2 keeps some of its own), and filled again. On a processor, too, bytes are copied and
memory is given back: all of it is the same there but for the name of the device.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, UntypedStorage, nn
from torch.autograd.graph import saved_tensors_hooks

from ppojob_trainer.parallel.boxes import cut_like, local_part


class HostMemory:
    """Host memory for some tensors of a device; of those cut over ranks, for this rank's parts.

    What it has once held keeps its place here: pinned memory takes long to get.
    """

    def __init__(self) -> None:
        # By identity; bytes, pinned beside a GPU. A storage is kept, so no other gets its identity.
        self._places: dict[int, tuple[UntypedStorage, Tensor]] = {}

    def take(self, tensors: Iterable[Tensor]) -> None:
        """Let tensors leave their device; those that have left stay as they are."""
        for storage in map(_storage, tensors):
            if size := storage.nbytes():
                if id(storage) not in self._places:
                    self._places[id(storage)] = storage, _host_bytes(size, storage.device)
                _, place = self._places[id(storage)]
                place.copy_(_bytes_of(storage))
                storage.resize_(0)

    def give_back(self, tensors: Iterable[Tensor]) -> None:
        """Bring tensors back; those that are there stay as they are."""
        for storage in map(_storage, tensors):
            if (place := self._left(storage)) is not None:
                storage.resize_(place.nbytes)
                _bytes_of(storage).copy_(place)

    def seen(self, tensor: Tensor) -> Tensor:
        """A tensor, or this rank's part of it, where its bytes are: here, or on its device.

        Valid until it is taken or given back.
        """
        part = local_part(tensor)
        place = self._left(part.untyped_storage())
        if place is None:
            return part
        return place.view(part.dtype).as_strided(part.shape, part.stride(), part.storage_offset())

    def on_device(self, tensor: Tensor) -> Tensor:
        """A tensor with its bytes on its device: itself, or of one that has left a copy."""
        if self._left(_storage(tensor)) is None:
            return tensor
        return cut_like(tensor, self.seen(tensor).to(tensor.device, copy=True))

    def _left(self, storage: UntypedStorage) -> Tensor | None:
        """The bytes of a storage that has left; None where it is on its device, or is nothing."""
        if storage.nbytes() or id(storage) not in self._places:
            return None
        return self._places[id(storage)][1]


class Resident:
    """Weights of a model, which may leave the device while others work there.

    With them go their gradients, of which nothing is needed behind an update.
    """

    def __init__(self, weights: Iterable[nn.Parameter], *, leaves: bool) -> None:
        """The weights are there; `leaves` says whether they ever leave."""
        self.host = HostMemory()
        self._weights: Sequence[nn.Parameter] = list(weights) if leaves else []

    def enter(self) -> None:
        """Be on the device."""
        self.host.give_back(weight.detach() for weight in self._weights)

    def leave(self) -> None:
        """Leave the device, if the weights ever do."""
        for weight in self._weights:
            weight.grad = None
        self.host.take(weight.detach() for weight in self._weights)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Be on the device for a while."""
        self.enter()
        try:
            yield
        finally:
            self.leave()


class OneOfSeveral(Resident):
    """Weights of several models, of which those of one are on the device; all, where none leave."""

    def __init__(self, models: Sequence[Resident]) -> None:
        super().__init__((), leaves=False)
        self._models = models
        self.chosen = 0

    def choose(self, number: int) -> None:
        """Have one model enter, and the one before it leave."""
        if number != self.chosen:
            self._models[self.chosen].leave()
        self.chosen = number
        self._models[number].enter()

    def enter(self) -> None:
        """May be on the device: a model enters when it is chosen."""

    def leave(self) -> None:
        """Leave the device, if the weights ever do."""
        self._models[self.chosen].leave()


def saved_on_host() -> AbstractContextManager[object]:
    """Keep in host memory what a forward pass within the block saves for its backward pass."""

    def pack(saved: Tensor) -> tuple[torch.device, Tensor]:
        place = torch.empty_like(saved, device="cpu", pin_memory=saved.is_cuda)
        return saved.device, place.copy_(saved)

    def unpack(packed: tuple[torch.device, Tensor]) -> Tensor:
        device, place = packed
        return place.to(device)

    return saved_tensors_hooks(pack, unpack)


def _storage(tensor: Tensor) -> UntypedStorage:
    return local_part(tensor).untyped_storage()


def _bytes_of(storage: UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _host_bytes(size: int, device: torch.device) -> Tensor:
    return torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
