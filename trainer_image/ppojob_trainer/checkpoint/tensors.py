"""Safetensors files of checkpoints: hashed while written, memory-mapped when read.

The same tensors give the same bytes on every machine: the order is by element size, for alignment,
and then by name, and the header has sorted keys. A tensor is written in chunks, and read as a view
of a private mapping of the file.

Format: https://huggingface.co/docs/safetensors (8 bytes length, JSON header, data).
"""

import concurrent.futures
import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ppojob_trainer import durable, failpoints
from ppojob_trainer.checkpoint.manifest import CHUNK_BYTES, check_content
from ppojob_trainer.errors import DamagedCheckpoint
from ppojob_trainer.models.mixtures import stays_float32
from ppojob_trainer.parallel.boxes import AllGather, Box, box_of, detached, full_tensor, local_part
from ppojob_trainer.rpc.messages.saving import FileEntry

SHARD_POINT: Final = durable.point("checkpoint.shard", "write", "fsync", "fsync_folder")
SHARD_MIDDLE: Final = failpoints.declare("checkpoint.shard.write.middle")

BOXES: Final = "boxes"
"""Header metadata key: tensor -> box, for shards."""

_DTYPE_NAMES: Final = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def join(_name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The `Join` of a tensor that is stored as it is: all-gather, converted before sending."""
    return full_tensor(detached(tensor, dtype))


def write_tensors(
    path: Path | None,
    tensors: Mapping[str, Tensor],
    *,
    dtype: torch.dtype | None = None,
    metadata: Mapping[str, str] | None = None,
    join: AllGather = join,
) -> tuple[int, str]:
    """Write a safetensors file in place, with fsync; not atomic, unlike its checkpoint.

    A sharded tensor is gathered by `join` before it is written; a rank without a path only takes
    part in that. Floating tensors are converted to `dtype`, one at a time; None keeps theirs.

    Returns:
        Size in bytes and sha256 in hex of the file.
    """
    stored = {name: stored_dtype(name, tensor, dtype) for name, tensor in tensors.items()}
    order = sorted(stored, key=lambda name: (-stored[name].itemsize, name))
    if path is None:
        for name in order:
            join(name, tensors[name], stored[name])
        return 0, ""
    header = _encode_header(order, tensors, stored, metadata or {})
    file = durable.open_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        with durable.act(SHARD_POINT, "write", path):
            size_bytes, sha256 = _write_hashed(file, _chunks(header, order, tensors, stored, join))
        with durable.act(SHARD_POINT, "fsync", path):
            os.fsync(file)
    finally:
        os.close(file)
    durable.fsync_folder(path.parent, SHARD_POINT)
    return size_bytes, sha256


@dataclass(frozen=True)
class Shard:
    """One file of a checkpoint, written by a rank of a role."""

    path: str  # of the file, relative to the checkpoint's folder
    parts: Mapping[str, Tensor]  # this rank's shard of each tensor, on any device
    boxes: Mapping[str, Box]  # of sharded tensors, the box of the shard
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


def read_shard(folder: Path, entry: FileEntry) -> dict[str, Tensor]:
    """Verify one file of a checkpoint, else raise DamagedCheckpoint, and map its tensors.

    They are on the CPU over a private mapping: writing to one changes no file and copies its pages;
    copy them out and drop them to free the memory.
    """
    check_content(folder, entry)
    return read_tensors(folder / entry.path, name=f"{folder.name}/{entry.path}")


def read_tensors(path: Path, *, name: str | None = None) -> dict[str, Tensor]:
    """Map the tensors of a safetensors file, unverified; raises DamagedCheckpoint."""
    with _opened(path, name or str(path)) as file:
        return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  no mapping


@dataclass(frozen=True, slots=True)
class _Piece:
    """A mapped tensor of a file, or part of it, with its plain box."""

    entry: FileEntry
    box: Box
    tensor: Tensor


def read_parts(
    folder: Path, entries: Iterable[FileEntry], wanted: Mapping[str, Box] | None, *, rank: int
) -> dict[str, Tensor]:
    """Map a rank's shards of tensors, as `read_shard` does, whatever layout wrote the files.

    Of the `entries`, those of all ranks of a role, only the files that it needs are read and
    verified: under the same layout the rank's own, which comes first for tensors in several files.
    `wanted` are the boxes of tensors, which files may lack; None for all of every one.
    """
    ordered = sorted(entries, key=lambda entry: (entry.rank != rank, entry.rank))
    pieces: dict[str, list[_Piece]] = {}
    for entry in ordered:
        for name, piece in _pieces(folder, entry):
            if wanted is not None and name not in wanted:
                continue
            pieces.setdefault(name, []).append(piece)
    verified: set[str] = set()
    parts = {}
    for name, found in pieces.items():
        box = Box.whole(found[0].box.shape) if wanted is None else wanted[name]
        needed = {
            plain: _needed(found, plain, f"{folder.name}: {name}") for plain, _ in box.plain()
        }
        for piece in chain.from_iterable(needed.values()):
            if piece.entry.path not in verified:
                check_content(folder, piece.entry)
                verified.add(piece.entry.path)
        joined = {plain: _join(own, plain) for plain, own in needed.items()}
        parts[name] = box.assemble(joined.__getitem__)
    return parts


def _pieces(folder: Path, entry: FileEntry) -> Iterable[tuple[str, _Piece]]:
    path, name = folder / entry.path, f"{folder.name}/{entry.path}"
    boxes = _read_boxes(path, name)
    for key, tensor in read_tensors(path, name=name).items():
        box = boxes.get(key, Box.whole(tuple(tensor.shape)))
        if box.local_shape != tuple(tensor.shape):
            raise DamagedCheckpoint(
                name, f"got {key} of shape {tuple(tensor.shape)}: its box is {box}"
            )
        for plain, own in box.plain():
            yield key, _Piece(entry, plain, tensor[own])


def _read_boxes(path: Path, name: str) -> dict[str, Box]:
    """Return the boxes of the sharded tensors of a file."""
    with _opened(path, name) as file:
        metadata = file.metadata() or {}
    try:
        return msgspec.json.decode(metadata.get(BOXES, "{}"), type=dict[str, Box])
    except msgspec.DecodeError as error:
        raise DamagedCheckpoint(name, f"its boxes do not parse: {error}") from error


def _needed(found: list[_Piece], wanted: Box, name: str) -> list[_Piece]:
    """Return pieces that cover a box, each element once; an empty box needs one."""
    by_box: dict[Box, _Piece] = {}
    for piece in found:
        if piece.box.shape != wanted.shape:
            raise DamagedCheckpoint(
                name, f"got a part of {piece.box.shape}: {wanted.shape} is needed"
            )
        by_box.setdefault(piece.box, piece)
    overlaps = [(piece, piece.box.intersect(wanted)) for piece in by_box.values()]
    held = sum(box.numel for _, box in overlaps if box is not None)
    if held != wanted.numel:
        raise DamagedCheckpoint(
            name, f"got {held} of its {wanted.numel} elements: {wanted} is needed; all ranks' files"
        )
    return [piece for piece, box in overlaps if box is not None] or found[:1]


def _join(pieces: list[_Piece], wanted: Box) -> Tensor:
    """Return the wanted box, without a copy if one piece holds it."""
    first = pieces[0]
    if wanted.numel == 0 and wanted.shape:
        return first.tensor.new_empty(wanted.local_shape)
    if len(pieces) == 1:
        return first.tensor[wanted.slices_in(first.box)]
    part = torch.empty(wanted.local_shape, dtype=first.tensor.dtype)
    for piece in pieces:
        shared = piece.box.intersect(wanted)
        assert shared is not None, "only pieces that overlap are joined"
        part[shared.slices_in(wanted)] = piece.tensor[shared.slices_in(piece.box)]
    return part


@contextlib.contextmanager
def _opened(path: Path, name: str) -> Iterator[Any]:
    """Open a safetensors file as a mapping: a `safe_open`, whose methods have no types."""
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise DamagedCheckpoint(name, f"not a safetensors file: {error}") from error


def stored_dtype(name: str, tensor: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    """Return the dtype that a tensor is stored in: `dtype` if it is floating, else its own.

    Exceptions are weights that stay float32, and Qwen2.5-Omni's vocoder.
    """
    keeps = stays_float32(name) or name.startswith("token2wav.")
    if dtype is None or not tensor.is_floating_point() or keeps:
        return tensor.dtype
    return dtype


def _encode_header(
    order: list[str],
    tensors: Mapping[str, Tensor],
    stored: Mapping[str, torch.dtype],
    metadata: Mapping[str, str],
) -> bytes:
    table: dict[str, object] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    offset = 0
    for name in order:
        assert stored[name] in _DTYPE_NAMES, f"{name}: {stored[name]} has no safetensors name"
        end = offset + tensors[name].numel() * stored[name].itemsize
        table[name] = {
            "dtype": _DTYPE_NAMES[stored[name]],
            "shape": list(tensors[name].shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _chunks(
    header: bytes,
    order: list[str],
    tensors: Mapping[str, Tensor],
    stored: Mapping[str, torch.dtype],
    join: AllGather,
) -> Iterator[memoryview]:
    """Yield the file's bytes in chunks of at most CHUNK_BYTES."""
    yield memoryview(header)
    for index, name in enumerate(order):
        if index == 1:
            failpoints.hit(SHARD_MIDDLE)
        flat = join(name, tensors[name], stored[name]).cpu().contiguous()
        data = flat.reshape(-1).view(torch.uint8).numpy().data
        for start in range(0, len(data), CHUNK_BYTES):
            yield data[start : start + CHUNK_BYTES]


def _write_hashed(file: int, chunks: Iterator[memoryview]) -> tuple[int, str]:
    """Write and hash in parallel: both release the GIL."""
    digest = hashlib.sha256()
    size_bytes = 0
    with concurrent.futures.ThreadPoolExecutor(1, "sha256") as hasher:
        hashed = hasher.submit(digest.update, b"")
        for chunk in chunks:
            hashed.result()
            hashed = hasher.submit(digest.update, chunk)
            durable.write_all(file, chunk)
            size_bytes += len(chunk)
        hashed.result()
    return size_bytes, digest.hexdigest()
