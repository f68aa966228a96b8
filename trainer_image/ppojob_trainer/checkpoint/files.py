"""Files of a checkpoint: size, digest, and their verification."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Final

from ppojob_trainer.errors import DamagedCheckpoint
from ppojob_trainer.rpc.messages.saving import FileEntry

CHUNK_BYTES: Final = 8 << 20
MODEL_FILE: Final = "model.safetensors"
"""File name of a rank's shard of a model's weights, in its folder of a checkpoint."""
AVERAGE_FILE: Final = "average.safetensors"
"""File name of the shard of their EMA."""


def files_of_all_ranks(
    entries: Iterable[FileEntry], role: str, name: str, checkpoint: str
) -> list[FileEntry]:
    """Return all ranks' files of one kind of a role; DamagedCheckpoint if one is missing."""
    found = [e for e in entries if e.role == role and PurePosixPath(e.path).name == name]
    if sorted(entry.rank for entry in found) != list(range(max(1, len(found)))):
        raise DamagedCheckpoint(
            f"{checkpoint}/{role}/*/{name}",
            f"got those of ranks {[entry.rank for entry in found]}: all ranks' are needed",
        )
    return found


def sha256_of(path: Path) -> tuple[int, str]:
    """Return size in bytes and sha256 in hex of a file, read through one small buffer.

    Read, not mapped: a bad sector raises OSError here, and SIGBUS in a mapping.
    """
    with path.open("rb", buffering=0) as file:
        digest = hashlib.file_digest(file, "sha256")
        return file.tell(), digest.hexdigest()


def entry_of(folder: Path, name: str, role: str, rank: int) -> FileEntry:
    """Return the manifest entry of a file that a rank has written, by its name in the folder."""
    size_bytes, sha256 = sha256_of(folder / name)
    return FileEntry(path=name, size_bytes=size_bytes, sha256=sha256, role=role, rank=rank)


def check_size(folder: Path, entry: FileEntry) -> None:
    """Check that a file exists with the expected size; else raises DamagedCheckpoint."""
    name = f"{folder.name}/{entry.path}"
    try:
        found = (folder / entry.path).lstat()
    except OSError as error:
        raise DamagedCheckpoint(name, _reason(error)) from error
    if found.st_size != entry.size_bytes:
        raise DamagedCheckpoint(
            name, f"got {found.st_size} bytes: the manifest says {entry.size_bytes}"
        )


def check_content(folder: Path, entry: FileEntry) -> None:
    """Verify a file of a checkpoint against its sha256; else raises DamagedCheckpoint."""
    check_size(folder, entry)
    name = f"{folder.name}/{entry.path}"
    try:
        _, sha256 = sha256_of(folder / entry.path)
    except OSError as error:
        raise DamagedCheckpoint(name, _reason(error)) from error
    if sha256 != entry.sha256:
        raise DamagedCheckpoint(
            name, f"got sha256 {sha256[:12]}: the manifest says {entry.sha256[:12]}; it was changed"
        )


def _reason(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "the file is missing"
    return f"cannot be read: {os.strerror(error.errno or 0)}"
