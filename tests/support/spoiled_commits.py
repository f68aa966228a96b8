"""Commits that are whole and leave something out: the negative control of the kill tests."""

from pathlib import Path

import msgspec
import torch
from safetensors.torch import load_file, save_file

from ppojob_trainer.checkpoint import manifest
from ppojob_trainer.checkpoint.files import FileEntry, sha256_of


def forget_cursor(commit: Path) -> None:
    """Move the data cursor of a commit back to the beginning."""
    path = commit / "manifest.json"
    found = manifest.decode(path.read_bytes(), path.name)
    data = msgspec.structs.replace(found.progress.data, epoch=0, cursor=0)
    progress = msgspec.structs.replace(found.progress, data=data)
    path.write_bytes(manifest.encode(msgspec.structs.replace(found, progress=progress)))


def forget_optimizer(commit: Path) -> None:
    """Zero the moments of the optimizer, as if they had not been saved."""
    shard = _shard(commit, "optimizer.safetensors")
    tensors = load_file(shard)
    save_file({n: t if t.ndim == 0 else torch.zeros_like(t) for n, t in tensors.items()}, shard)
    _list_again(commit)


def forget_random_state(commit: Path) -> None:
    """Put the random state of a fresh process in place of the saved one."""
    save_file(
        {"torch": torch.Generator().manual_seed(12345).get_state()},
        _shard(commit, "rng.safetensors"),
    )
    _list_again(commit)


def _shard(commit: Path, name: str) -> Path:
    (path,) = commit.glob(f"*/rank-00000/{name}")
    return path


def _list_again(commit: Path) -> None:
    """Have the manifest say what its files are now."""
    path = commit / "manifest.json"
    found = manifest.decode(path.read_bytes(), path.name)
    files = []
    for entry in found.files:
        size_bytes, sha256 = sha256_of(commit / entry.path)
        files.append(
            FileEntry(
                path=entry.path,
                size_bytes=size_bytes,
                sha256=sha256,
                role=entry.role,
                rank=entry.rank,
            )
        )
    path.write_bytes(manifest.encode(msgspec.structs.replace(found, files=tuple(files))))
