"""Whether a run folder can take a run: a place to write, of our own, and space."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ppojob_api.problem import Problem, ReasonCode
from ppojob_api.run_config import RunConfig
from ppojob_api.run_layout import (
    CHECKPOINTS_FOLDER,
    EXPORT_FOLDER,
    JOB_FILE,
    METRICS_FILE,
    SUMMARY_FILE,
)
from ppojob_cli.run_folder import has_run
from ppojob_trainer.checkpoint.commit import unsealed
from ppojob_trainer.models.architectures import count_adapters

COMMIT_BYTES: Final = 12
"""Of a trained weight in a commit: float32, and the two moments of AdamW."""

MOUNTS: Final = Path("/proc/self/mounts")

_WRITTEN: Final = (JOB_FILE, METRICS_FILE, SUMMARY_FILE, EXPORT_FOLDER)
_EXPORT_BYTES: Final = {"float32": 4, "bfloat16": 2}
_GIB: Final = 2**30
_BLOCK_BYTES: Final = 512  # of `st_blocks`, whatever the file system's own are
_WHERE: Final = "--output"
_WRITABLE: Final = "a folder that can be written"


def check_output(config: RunConfig, folder: Path, parameters: int | None) -> Iterator[Problem]:
    """What stands against writing the run there.

    Args:
        config: the run.
        folder: its folder; it need not exist, and is not made.
        parameters: weights of the model; None where they are not known.
    """
    if why := _written_over(config, folder):
        yield Problem(_WHERE, str(folder), why, "another folder", ReasonCode.CONFLICT)
    ground = _ground(folder)
    if not ground.is_dir():
        yield Problem(_WHERE, str(folder), f"{ground} is a file", _WRITABLE, ReasonCode.UNREADABLE)
        return
    try:
        with tempfile.TemporaryFile(dir=ground) as file:
            file.write(b"\0")
    except OSError as error:
        why = f"nothing can be written in {ground} ({error.strerror})"
        yield Problem(_WHERE, str(folder), why, _WRITABLE, ReasonCode.UNREADABLE)
        return
    if parameters is not None:
        yield from _space(config, folder, ground, parameters)


def volatile_warning(folder: Path) -> Iterator[Problem]:
    """A run folder in memory, which does not outlive the machine."""
    ground = _ground(folder)
    if _file_system(ground) in {"tmpfs", "ramfs"}:
        yield Problem(
            _WHERE,
            str(folder),
            "it lies in memory: a restart of the machine loses the run",
            "a folder on a disk",
            ReasonCode.OUT_OF_RANGE,
        )


def _written_over(config: RunConfig, folder: Path) -> str | None:
    """What the run would write over: the model that it begins from, or what no run has left."""
    target = os.path.realpath(folder)
    written = {target, os.path.join(target, EXPORT_FOLDER)}
    model = config.spec.model
    for name, path in (("path", model.path), ("tokenizerPath", model.tokenizer_path)):
        if path is not None and os.path.realpath(path) in written:
            return f"spec.model.{name} {path} would be written over"
    for name in () if has_run(folder) else _WRITTEN:
        if os.path.lexists(folder / name):
            return f"{folder / name} would be written over, and no run has left it"
    return None


def _ground(folder: Path) -> Path:
    """The folder itself, or the nearest above it that is there."""
    path = Path(os.path.abspath(folder))
    while not os.path.exists(path) and path != path.parent:
        path = path.parent
    return path


def _space(config: RunConfig, folder: Path, ground: Path, parameters: int) -> Iterator[Problem]:
    facts = os.statvfs(ground)
    free = facts.f_bavail * facts.f_frsize + _freed_at_start(folder / CHECKPOINTS_FOLDER)
    export = _EXPORT_BYTES[config.spec.model.dtype] if config.spec.checkpoint.export else 0
    model = config.spec.model
    trained = parameters if model.lora is None else count_adapters(model)
    needed = trained * COMMIT_BYTES + parameters * export
    if needed > free:
        what = "a commit and the export need" if export else "a commit needs"
        yield Problem(
            _WHERE,
            str(folder),
            f"{free / _GIB:.2f} GiB are free at {ground}, and {what} {needed / _GIB:.2f} GiB",
            "more free space, or a folder on another volume",
            ReasonCode.OUT_OF_RANGE,
        )


def _freed_at_start(root: Path) -> int:
    """Bytes of the commit in the middle of which a run in this folder ended."""
    if not os.path.isdir(root):
        return 0
    size_bytes = 0
    for left in unsealed(root):
        if left.is_symlink():
            continue
        for path, _, names in os.walk(left):
            for name in names:
                with contextlib.suppress(FileNotFoundError):  # another process may run the job
                    size_bytes += os.lstat(os.path.join(path, name)).st_blocks * _BLOCK_BYTES
    return size_bytes


def _file_system(path: Path) -> str:
    """Kind of the file system that holds a path; empty where it is not known."""
    try:
        mounts = MOUNTS.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    real, found, kind = Path(os.path.realpath(path)), "", ""
    for line in mounts:
        _, point, name, *_ = line.split(" ")
        point = point.replace(r"\040", " ")
        if real.is_relative_to(point) and len(point) >= len(found):
            found, kind = point, name
    return kind
