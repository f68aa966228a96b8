"""Workspaces: folders in which shell commands of a model run, one at a time, in the sandbox."""

import contextlib
import fcntl
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from ppojob_api.problem import printable
from ppojob_trainer.sandbox.executor import (
    Sandbox,
    run_isolated,
    tested,
    trial,
    trial_problem,
)
from ppojob_trainer.sandbox.levels import WORKSPACE, Isolation, Level, workspace_isolation
from ppojob_trainer.sandbox.process import Limits, Outcome, Usage

_LOOK_SECONDS: Final = 0.25
"""Interval at which the size of the files is checked."""
_ENTRY_BYTES: Final = 512
_PROCESSES: Final = 256
_OPEN_FILES: Final = 256
_OUTPUT_BYTES: Final = 1 << 20
_HOME, _TEMPORARY = "home", "tmp"
_MODE: Final = 0o700
_PYTHON: Final = Path(sys.executable)


class Workspace:
    """A folder, and the shell commands that may change it and nothing else.

    All processes of a command are killed when its shell ends. So the state is the files.

    Args:
        isolation: that of programs.
        limits: of time and memory for a command and all its processes.
        name: of the folder. Commands see it at the level `RESTRICTED`.
        most_bytes: size of all files; a command that exceeds it is killed.
        readable: more files and folders that commands may read.
    """

    def __init__(
        self,
        isolation: Isolation,
        limits: Limits,
        name: str,
        *,
        most_bytes: int,
        readable: Sequence[str] = (),
    ) -> None:
        self._opened = contextlib.ExitStack()
        self._folder = self._opened.enter_context(_own_folder(name))
        self._isolation = workspace_isolation(isolation, str(self._folder), readable)
        self._limits = Limits(limits.seconds, limits.memory_bytes, _OUTPUT_BYTES, _PROCESSES)
        self._most_bytes = most_bytes
        has_namespaces = self._isolation.level == Level.NAMESPACES
        self._inside = WORKSPACE if has_namespaces else str(self._folder)

    @property
    def home(self) -> Path:
        """The folder in which commands start; it may hold anything, such as links that lead out."""
        return self._folder / _HOME

    def run(self, command: str, files: Mapping[str, str] | None = None) -> Outcome:
        """Run a command of bash, after files are written, by their paths in the folder.

        Standard output has both streams. `stopped` is ``time``, ``output``, ``threads``, ``memory``
        or ``files`` for the limit that the command exceeded.
        """
        home = f"{self._inside}/{_HOME}"
        message = {
            "shell": {"command": command, "folder": home, "files": dict(files or {})},
            "file_bytes": self._most_bytes,
            "open_files": _OPEN_FILES,
        }
        variables = {
            "HOME": home,
            "TMPDIR": f"{self._inside}/{_TEMPORARY}",
            "PATH": f"{_PYTHON.parent}:/usr/local/bin:/usr/bin:/bin",
            "PYTHONDONTWRITEBYTECODE": "1",
            "GIT_CONFIG_NOSYSTEM": "1",  # which git would fail to read
        }
        watch = _Watch(self._folder, self._most_bytes, self._limits.memory_bytes)
        return run_isolated(
            self._isolation, self._limits, message, variables=variables, exceeded=watch.exceeded
        )

    def close(self) -> None:
        """Delete the folder. Idempotent."""
        self._opened.close()


def isolation_of_workspaces(sandbox: Sandbox) -> Isolation:
    """Return the isolation of programs with which workspaces are isolated too.

    It lacks what does not hold for them. Raises SandboxRefused if that is too little.
    """
    return tested(sandbox.isolation, _trial_problem, sandbox.least)


def _trial_problem(isolation: Isolation) -> str | None:
    workspace = Workspace(isolation, Limits(), "trial", most_bytes=1 << 20)
    with contextlib.closing(workspace), tempfile.TemporaryDirectory() as other:
        program = trial(
            {
                "the network": "_socket.socket()",
                "files": "os.listdir('/etc')",
                "other folders": f"os.listdir({other!r})",
                "signals": f"os.kill({os.getpid()}, 0)",
            }
        )
        command = f"cat trial.py > copy.py && {_PYTHON.name} copy.py"
        return trial_problem(workspace.run(command, {"trial.py": program}))


class _Watch:
    """Checks memory and files of a command."""

    def __init__(self, folder: Path, most_bytes: int, memory_bytes: int) -> None:
        self._folder, self._memory_bytes = folder, memory_bytes
        size = _size(folder)
        # A command that only deletes must be possible in a workspace that is too large.
        self._most_bytes = size if most_bytes < size < math.inf else most_bytes
        self._next = time.monotonic()

    def exceeded(self, usage: Usage) -> str:
        if usage.memory_bytes > self._memory_bytes:
            return "memory"
        if (now := time.monotonic()) >= self._next:
            size = _size(self._folder)
            # A large folder takes long to look at.
            self._next = time.monotonic() + max(_LOOK_SECONDS, 4 * (time.monotonic() - now))
            return "files" if size > self._most_bytes else ""
        return ""


def _size(folder: Path) -> float:
    """Return the bytes on disk of a folder; links are not followed.

    It is infinite if a folder in it cannot be read.
    """
    total, folders = 0, [folder]
    while folders:
        try:
            for entry in os.scandir(folders.pop()):
                with contextlib.suppress(FileNotFoundError):  # a process has just deleted it
                    status = entry.stat(follow_symlinks=False)
                    total += max(_ENTRY_BYTES, status.st_blocks * 512)
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(Path(entry.path))
        except PermissionError:
            return math.inf
        except (FileNotFoundError, NotADirectoryError):
            continue
    return total


@contextlib.contextmanager
def _own_folder(name: str) -> Iterator[Path]:
    """Create the folder of a name that no living process has; else one with another name.

    The same name every time has commands print the same paths. Folders of processes that have been
    killed are deleted.
    """
    root = Path(tempfile.gettempdir(), f"ppojob-workspaces-{os.getuid()}")
    root.mkdir(mode=_MODE, exist_ok=True)
    if root.stat().st_uid != os.getuid() or root.is_symlink():
        raise PermissionError(f"{root}: belongs to another user")
    slug = printable(name, 100).replace("/", "-").replace(" ", "-").strip(".") or "row"
    number = 1
    while True:
        folder = root / (slug if number == 1 else f"{slug}-{number}")
        with open(f"{folder}.lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                number += 1
                continue
            try:
                _delete(folder)
                for part in (_HOME, _TEMPORARY):
                    (folder / part).mkdir(mode=_MODE, parents=True)
                yield folder
            finally:
                _delete(folder)
                os.unlink(lock.name)
            return


def _delete(folder: Path) -> None:
    """Delete a folder, also if a command has taken the rights to folders in it."""
    for parent, names, _ in os.walk(folder):
        for path in (os.path.join(parent, name) for name in names):
            if not os.path.islink(path):
                os.chmod(path, _MODE)
    if folder.exists():
        shutil.rmtree(folder)
