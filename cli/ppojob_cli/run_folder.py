"""The folder of a run: who owns it now, and what it is a run of."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from ppojob_api.run_layout import CHECKPOINTS_FOLDER
from ppojob_trainer.checkpoint.journal import JOURNAL_NAME
from ppojob_trainer.errors import ConfigError

LOCK_FILE = ".lock"


def has_run(folder: Path) -> bool:
    """Whether a run has begun there: one of this machine leaves its lock, each its journal."""
    journal = folder / CHECKPOINTS_FOLDER / JOURNAL_NAME
    return os.path.exists(journal) or os.path.exists(folder / LOCK_FILE)


@contextlib.contextmanager
def usable(folder: Path) -> Iterator[None]:
    """Do something with a run folder that the system may refuse.

    Raises:
        ConfigError: it did.
    """
    try:
        yield
    except OSError as problem:
        where = f"{problem.filename}: " if problem.filename else ""
        raise ConfigError(
            f"--output: got {folder}: {where}{problem.strerror}; a folder that can be written"
        ) from problem


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Own a run folder while the block runs; it is made where it is absent.

    The kernel drops the lock when the process ends, however it ends.

    Raises:
        ConfigError: another process owns it, or it cannot be made, written or locked.
    """
    with usable(folder):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        with usable(folder):
            _take_lock(folder, descriptor)
        yield
    finally:
        os.close(descriptor)


def _take_lock(folder: Path, descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(descriptor, 32, 0).decode().strip()
        raise ConfigError(
            f"--output: got {folder}: process {owner} runs a job there; "
            "wait for it, end it, or give another folder"
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
