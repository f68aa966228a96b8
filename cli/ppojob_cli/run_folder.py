"""Run folder: its lock, and the files written before a run starts."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ppojob_api import manifest
from ppojob_api.run_config import RunConfig
from ppojob_api.run_layout import JOB_FILE
from ppojob_cli.input_error import output_errors
from ppojob_trainer.errors import ConfigError

LOCK_FILE: Final = ".lock"  # lock of the `ppojob run` that uses the folder


def write_job(folder: Path, config: RunConfig) -> None:
    """Write the resolved manifest atomically."""
    temporary = folder / f".{JOB_FILE}.aside"
    temporary.write_text(manifest.dump(config.job()))
    temporary.replace(folder / JOB_FILE)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Create a run folder if needed, and lock it; a `ConfigError` if another process has.

    The kernel releases the lock when the process ends.
    """
    with output_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        with output_errors(folder):
            _take(folder, descriptor, fcntl.LOCK_EX)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def refuse_owned(folder: Path) -> None:
    """Raise a `ConfigError` if a process has locked a run folder, without changing anything."""
    with contextlib.suppress(OSError), (folder / LOCK_FILE).open() as file:
        _take(folder, file.fileno(), fcntl.LOCK_SH)


def is_left(folder: Path) -> bool:
    """Return whether `ppojob run` has used a folder, and no process has locked it now."""
    try:
        refuse_owned(folder)
    except ConfigError:
        return False
    return (folder / LOCK_FILE).exists()


def _take(folder: Path, descriptor: int, kind: int) -> None:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(descriptor, 32, 0).decode().strip()
        raise ConfigError(
            f"--output: got {folder}: process {owner} runs a job there; "
            "wait for it, end it, or give another folder"
        ) from None
