"""A rank's parts of tensors out of the files of a commit, whatever layout wrote them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from ppojob_trainer.checkpoint.files import FileEntry, check_content
from ppojob_trainer.checkpoint.tensors import BOXES, opened, read_tensors
from ppojob_trainer.errors import DamagedCommit
from ppojob_trainer.parallel.boxes import Box


@dataclass(frozen=True, slots=True)
class _Piece:
    """A tensor of a file, mapped, and what it is a part of."""

    entry: FileEntry
    box: Box
    tensor: Tensor


def read_parts(
    folder: Path, entries: Iterable[FileEntry], wanted: Mapping[str, Box], *, rank: int
) -> dict[str, Tensor]:
    """Map a rank's part of every tensor.

    Only the files that it needs are read, and those are verified: under the layout that wrote the
    commit that is the rank's own.

    Args:
        folder: the commit's folder.
        entries: the files that all ranks of a role wrote of the same tensors (their weights).
        wanted: the part of each tensor; all of one that is not named.
        rank: who reads; its own file comes first, for what stands in several.

    Returns:
        Tensors on the CPU, by name; see `read_shard`.

    Raises:
        DamagedCommit: names the file.
    """
    ordered = sorted(entries, key=lambda entry: (entry.rank != rank, entry.rank))
    pieces: dict[str, list[_Piece]] = {}
    for entry in ordered:
        for name, piece in _pieces(folder, entry):
            pieces.setdefault(name, []).append(piece)
    verified: set[str] = set()
    parts = {}
    for name, found in pieces.items():
        box = wanted.get(name) or Box.whole(found[0].box.shape)
        needed = _needed(found, box, f"{folder.name}: {name}")
        for piece in needed:
            if piece.entry.path not in verified:
                check_content(folder, piece.entry)
                verified.add(piece.entry.path)
        parts[name] = _join(needed, box)
    return parts


def _pieces(folder: Path, entry: FileEntry) -> Iterable[tuple[str, _Piece]]:
    path, name = folder / entry.path, f"{folder.name}/{entry.path}"
    boxes = _read_boxes(path, name)
    for key, tensor in read_tensors(path, name=name).items():
        box = boxes.get(key, Box.whole(tuple(tensor.shape)))
        if box.local_shape != tuple(tensor.shape):
            raise DamagedCommit(name, f"got {key} of shape {tuple(tensor.shape)}: its box is {box}")
        yield key, _Piece(entry, box, tensor)


def _read_boxes(path: Path, name: str) -> dict[str, Box]:
    """The boxes of the tensors of a file that are parts of others."""
    with opened(path, name) as file:
        metadata = file.metadata() or {}
    try:
        return msgspec.json.decode(metadata.get(BOXES, "{}"), type=dict[str, Box])
    except msgspec.DecodeError as error:
        raise DamagedCommit(name, f"its boxes do not parse: {error}") from error


def _needed(found: list[_Piece], wanted: Box, name: str) -> list[_Piece]:
    """The pieces that hold a part, each place of it once; a part without elements needs one."""
    by_box: dict[Box, _Piece] = {}
    for piece in found:
        if piece.box.shape != wanted.shape:
            raise DamagedCommit(name, f"got a part of {piece.box.shape}: {wanted.shape} is needed")
        by_box.setdefault(piece.box, piece)
    overlaps = [(piece, piece.box.intersect(wanted)) for piece in by_box.values()]
    held = sum(box.numel for _, box in overlaps if box is not None)
    if held != wanted.numel:
        raise DamagedCommit(
            name, f"got {held} of its {wanted.numel} elements: {wanted} is needed; all ranks' files"
        )
    return [piece for piece, box in overlaps if box is not None] or found[:1]


def _join(pieces: list[_Piece], wanted: Box) -> Tensor:
    """The wanted part, without a copy where one piece holds it."""
    first = pieces[0]
    if wanted.numel == 0 and wanted.shape:
        return first.tensor.new_empty(wanted.local_shape)
    if len(pieces) == 1:
        return first.tensor[wanted.seen_from(first.box)]
    part = torch.empty(wanted.local_shape, dtype=first.tensor.dtype)
    for piece in pieces:
        shared = piece.box.intersect(wanted)
        assert shared is not None, "only pieces that overlap are joined"
        part[shared.seen_from(wanted)] = piece.tensor[shared.seen_from(piece.box)]
    return part
