"""Checkpoint shards: the files that a rank writes, and host copies of their tensors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from ppojob_trainer import durable
from ppojob_trainer.checkpoint.tensors import BOXES, write_tensors
from ppojob_trainer.parallel.boxes import Box, box_of, local_part
from ppojob_trainer.rpc.messages.saving import FileEntry


@dataclass(frozen=True)
class Shard:
    """One file of a checkpoint, written by a rank of a role.

    Attributes:
        path: of the file, relative to the checkpoint's folder.
        parts: this rank's shard of each tensor, on any device.
        boxes: of sharded tensors, the box of the shard.
    """

    path: str
    parts: Mapping[str, Tensor]
    boxes: Mapping[str, Box]
    role: str
    rank: int

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors, without the header."""
        return sum(part.nbytes for part in self.parts.values())

    @classmethod
    def of(
        cls,
        path: str,
        tensors: Mapping[str, Tensor],
        *,
        role: str,
        rank: int,
        seen: Callable[[Tensor], Tensor] = local_part,
    ) -> "Shard":
        """Make the file of some tensors; `seen` returns this rank's shard where its bytes are."""
        parts = {name: seen(tensor) for name, tensor in tensors.items()}
        boxes = {name: box_of(t) for name, t in tensors.items() if local_part(t) is not t}
        return cls(path, parts, boxes, role, rank)

    def write(self, folder: Path) -> FileEntry:
        """Write it into a checkpoint's folder; on return it is on disk.

        Raises:
            StorageError: the disk refused.
            FileNotFoundError: the pending checkpoint is gone: the job was rewound.
        """
        target = folder / self.path
        for parent in reversed(target.relative_to(folder).parents[:-1]):
            durable.make_folder(folder / parent, exist_ok=True)
        boxes = self.boxes
        metadata = {BOXES: msgspec.json.encode(boxes, order="sorted").decode()} if boxes else {}
        size_bytes, sha256 = write_tensors(target, self.parts, metadata=metadata)
        return FileEntry(
            path=self.path, size_bytes=size_bytes, sha256=sha256, role=self.role, rank=self.rank
        )


@dataclass
class HostCopies:
    """Reusable host memory for copies of files to be written, pinned if there is a GPU."""

    _buffers: dict[tuple[str, str], Tensor] = field(default_factory=dict)  # by file and tensor

    def of(self, shard: Shard) -> Shard:
        """Copy a file's tensors; a previous copy of the same path becomes invalid."""
        parts = {name: self._copied((shard.path, name), t) for name, t in shard.parts.items()}
        for device in {part.device for part in shard.parts.values() if part.is_cuda}:
            torch.cuda.current_stream(device).synchronize()
        return replace(shard, parts=parts)

    def _copied(self, key: tuple[str, str], tensor: Tensor) -> Tensor:
        buffer = self._buffers.get(key)
        if buffer is None or (buffer.shape, buffer.dtype) != (tensor.shape, tensor.dtype):
            buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            self._buffers[key] = buffer
        return buffer.copy_(tensor, non_blocking=True)
