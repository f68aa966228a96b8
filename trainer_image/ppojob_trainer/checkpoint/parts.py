"""A rank's parts of tensors out of the files of a commit, whatever number of ranks wrote them."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ppojob_trainer.checkpoint.extents import read_extents
from ppojob_trainer.checkpoint.files import FileEntry, check_content
from ppojob_trainer.checkpoint.tensors import read_tensors
from ppojob_trainer.errors import DamagedCommit
from ppojob_trainer.parallel.fsdp import Extent, extent_of_rank


@dataclass(frozen=True, slots=True)
class _Piece:
    """A tensor of a file, mapped, and what it is of."""

    entry: FileEntry
    extent: Extent
    tensor: Tensor


def read_parts(
    folder: Path, entries: Iterable[FileEntry], rank: int, size: int
) -> dict[str, Tensor]:
    """Map what a rank of `size` holds of every tensor.

    Only the files that it needs are read, and those are verified: under the layout that wrote the
    commit that is the rank's own. Tensors without a dimension are the same in all files.

    Args:
        folder: the commit's folder.
        entries: the files that all ranks of a role wrote of the same tensors (their weights).
        rank: who reads.
        size: ranks that the tensors are cut over now.

    Returns:
        Tensors on the CPU, by name; see `read_shard`.

    Raises:
        DamagedCommit: names the file.
    """
    # The rank's own file comes first, for what stands in all of them.
    ordered = sorted(entries, key=lambda entry: (entry.rank != rank, entry.rank))
    pieces: dict[str, list[_Piece]] = {}
    for entry in ordered:
        for name, piece in _pieces(folder, entry):
            pieces.setdefault(name, []).append(piece)
    verified: set[str] = set()
    parts = {}
    for name, found in pieces.items():
        shape = found[0].extent.shape
        wanted = extent_of_rank(shape, rank, size) if shape else found[0].extent
        needed = [piece for piece in found if _overlaps(piece.extent, wanted)] or found[:1]
        for piece in needed:
            if piece.entry.path not in verified:
                check_content(folder, piece.entry)
                verified.add(piece.entry.path)
        parts[name] = _join(needed, wanted, f"{folder.name}: {name}")
    return parts


def _pieces(folder: Path, entry: FileEntry) -> Iterable[tuple[str, _Piece]]:
    path, name = folder / entry.path, f"{folder.name}/{entry.path}"
    try:
        tensors = read_tensors(path, name=name)
        extents = read_extents(path, tensors, name)
    except OSError as error:
        raise DamagedCommit(name, f"cannot be read: {error.strerror}") from error
    for key, tensor in tensors.items():
        yield key, _Piece(entry, extents[key], tensor)


def _overlaps(left: Extent, right: Extent) -> bool:
    return max(left.start, right.start) < min(left.stop, right.stop)


def _join(pieces: list[_Piece], wanted: Extent, name: str) -> Tensor:
    """The wanted part, without a copy where one piece holds it."""
    if not wanted.shape:
        return pieces[0].tensor
    runs, at = [], wanted.start
    for piece in sorted(pieces, key=lambda piece: piece.extent.start):
        if piece.extent.start > at or piece.extent.shape != wanted.shape:
            break
        start = piece.extent.start
        runs.append(piece.tensor[at - start : wanted.stop - start])
        at = max(at, min(wanted.stop, piece.extent.stop))
    if at < wanted.stop:
        raise DamagedCommit(name, f"got no rows from {at} on: {wanted} is needed; all ranks' files")
    return torch.cat(runs) if len(runs) > 1 else runs[0]
