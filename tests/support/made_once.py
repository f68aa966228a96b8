"""What takes minutes to make and is only read, made by one of the test workers for all of them."""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest


def _root(factory: pytest.TempPathFactory) -> Path:
    """The folder that all workers share."""
    root = factory.getbasetemp()
    return root.parent if "PYTEST_XDIST_WORKER" in os.environ else root


@contextmanager
def kept_once(
    factory: pytest.TempPathFactory, name: str, script: Path, environment: Mapping[str, str]
) -> Iterator[Path]:
    """A folder of what a script keeps, as long as a worker is within this block."""

    def keep(folder: Path) -> None:
        subprocess.run([sys.executable, script, folder], env=environment, check=True)

    with (_root(factory) / f"{name}.users").open("w") as users:
        fcntl.flock(users, fcntl.LOCK_SH)
        yield made_once(factory, name, keep)


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder that the first worker to ask fills by `make`, and the others wait for."""
    root = _root(factory)
    folder = root / name
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (made := root / f"{name}.made").exists():
            shutil.rmtree(folder, ignore_errors=True)  # of one who failed
            folder.mkdir()
            make(folder)
            made.touch()
    return folder
