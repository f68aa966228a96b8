"""Workspaces: folders in which shell commands of a model run, one at a time, in the sandbox."""

import contextlib
import ctypes
import fcntl
import functools
import itertools
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from ppojob_api.problem import printable
from ppojob_trainer.sandbox import inside
from ppojob_trainer.sandbox.executor import (
    Sandbox,
    run_isolated,
    tested,
    trial,
    trial_problem,
)
from ppojob_trainer.sandbox.levels import Isolation, Level, workspace_isolation
from ppojob_trainer.sandbox.process import Limits, Outcome, Usage

_LOOK_SECONDS: Final = 0.25
"""Interval at which the size of the files is checked."""
_ENTRY_BYTES: Final = 1024
_PROCESSES: Final = 256
_OPEN_FILES: Final = 256
_ALL_OPEN_FILES: Final = 1024
"""Sockets hold memory that is no process's."""
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
        home, temporary = str(self._folder / _HOME), str(self._folder / _TEMPORARY)
        # Where the interpreter is in /tmp, it would be hidden.
        hides = any(path.startswith("/tmp/") for path in (*isolation.readable, *readable))
        places = {"/workspace": home, "/workspace-tmp" if hides else "/tmp": temporary}
        self._isolation = workspace_isolation(isolation, places, readable)
        self._limits = Limits(limits.seconds, limits.memory_bytes, _OUTPUT_BYTES, _PROCESSES)
        self._most_bytes = most_bytes
        self._bytes = 0  # after the last command
        has_namespaces = self._isolation.level == Level.NAMESPACES
        self._home, self._temporary = places if has_namespaces else places.values()

    def add(self, source: Path) -> None:
        """Copy a folder into the one in which commands start; raises ValueError if it is large."""
        shutil.copytree(source, self._folder / _HOME, symlinks=True, dirs_exist_ok=True)
        _make_writable(self._folder)
        self._bytes = _size(self._folder)
        if self._bytes > self._most_bytes:
            raise ValueError(f"got {self._bytes} bytes in {source}: at most {self._most_bytes}")

    def run(self, command: str, files: Mapping[str, str] | None = None) -> Outcome:
        """Run a command of bash, after files are written, by their paths in the folder.

        Standard output has both streams. `stopped` is ``time``, ``output``, ``threads``,
        ``memory``, ``descriptors`` or ``files`` for the limit that the command exceeded. When the
        files are too large, the next command can only delete; if they still grow, all are deleted.
        """
        is_full = self._bytes >= self._most_bytes
        message = {
            "shell": {"command": command, "folder": self._home, "files": dict(files or {})},
            "file_bytes": 0 if is_full else self._most_bytes,
            "open_files": _OPEN_FILES,
        }
        variables = {
            "HOME": self._home,
            "TMPDIR": self._temporary,
            "PATH": f"{_PYTHON.parent}:/usr/local/bin:/usr/bin:/bin",
            "PYTHONDONTWRITEBYTECODE": "1",
            "GIT_CONFIG_NOSYSTEM": "1",  # which git would fail to read
        }
        watch = _Watch(self._folder, max(self._bytes, self._most_bytes), self._limits.memory_bytes)
        with contextlib.closing(watch), _adoption():
            outcome = run_isolated(
                self._isolation, self._limits, message, variables=variables, exceeded=watch.exceeded
            )
        before, self._bytes = self._bytes, _size(self._folder)
        if self._bytes > max(before, self._most_bytes):
            if is_full:
                _delete(self._folder)
                _make_parts(self._folder)
                self._bytes = 0
            outcome = replace(outcome, stopped=outcome.stopped or "files")
        return outcome

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


@contextlib.contextmanager
def _adoption() -> Iterator[None]:
    """Be the parent of orphans, which are then reaped: the first process of a pod may not do it."""
    libc = ctypes.CDLL(None)
    libc.prctl(inside.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(inside.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


class _Watch:
    """Checks memory, descriptors and files of a command."""

    def __init__(self, folder: Path, most_bytes: int, memory_bytes: int) -> None:
        self._folder, self._most_bytes, self._memory_bytes = folder, most_bytes, memory_bytes
        # What a shorter command leaves is measured when it has ended.
        self._next = time.monotonic() + _LOOK_SECONDS
        self._measuring: subprocess.Popen[bytes] | None = None
        self._unlinked_bytes = 0

    def exceeded(self, usage: Usage) -> str:
        if usage.memory_bytes > self._memory_bytes:
            return "memory"
        if self._measuring is not None and self._measuring.poll() is not None:
            output, _ = self._measuring.communicate()
            self._measuring = None
            if _bytes_of(output) + self._unlinked_bytes > self._most_bytes:
                return "files"
        if self._measuring is None and time.monotonic() >= self._next:
            self._next = time.monotonic() + _LOOK_SECONDS
            self._measuring = _measure(self._folder)
            count, self._unlinked_bytes = _descriptors(usage.pids)
            return "descriptors" if count > _ALL_OPEN_FILES else ""
        return ""

    def close(self) -> None:
        if self._measuring is not None:
            self._measuring.kill()
            self._measuring.communicate()


def _descriptors(pids: Sequence[int]) -> tuple[int, int]:
    """Return how many descriptors processes have, and the bytes of deleted files among them."""
    count, unlinked = 0, dict[tuple[int, int], int]()
    for pid in pids:
        with contextlib.suppress(OSError):  # it has just ended
            for path in os.scandir(f"/proc/{pid}/fd"):
                count += 1
                with contextlib.suppress(OSError):
                    found = os.stat(path)
                    if stat.S_ISREG(found.st_mode) and not found.st_nlink:
                        unlinked[found.st_dev, found.st_ino] = found.st_blocks * 512
    return count, sum(unlinked.values())


# Of what a command has left, paths may be longer than the system's limit, nest deeper than Python
# recurses, and be replaced by links meanwhile. The programs of coreutils know all that.


def _measure(folder: Path) -> "subprocess.Popen[bytes]":
    command = ("du", "-s", "--block-size=1", folder)
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def _bytes_of(output: bytes) -> int:
    return int((output.split() or [b"0"])[0])


def _size(folder: Path) -> int:
    """Return the bytes on disk of a folder in which no process runs; an entry has some at least."""
    with _measure(folder) as measuring:
        output, _ = measuring.communicate()
    if measuring.returncode:  # a folder that cannot be read
        _make_writable(folder)
        with _measure(folder) as measuring:
            output, _ = measuring.communicate()
    command = ("du", "-s", "--inodes", folder)
    entries = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    return max(_bytes_of(output), _ENTRY_BYTES * _bytes_of(entries))


def _make_writable(folder: Path) -> None:
    subprocess.run(("chmod", "-R", "u+rwX", folder), stderr=subprocess.DEVNULL)


def _delete(folder: Path) -> None:
    for _ in range(2):
        if subprocess.run(("rm", "-rf", folder), stderr=subprocess.DEVNULL).returncode == 0:
            return
        _make_writable(folder)


def _make_parts(folder: Path) -> None:
    for part in (_HOME, _TEMPORARY):
        (folder / part).mkdir(mode=_MODE, parents=True)


@contextlib.contextmanager
def _own_folder(name: str) -> Iterator[Path]:
    """Create the folder of a name that no living process has; else one with another name.

    The same name every time has commands print the same paths.
    """
    slug = printable(name, 100).replace("/", "-").replace(" ", "-").strip(".") or "row"
    for number in itertools.count(1):
        folder = _root() / (slug if number == 1 else f"{slug}-{number}")
        with _locked(folder) as is_ours:
            if is_ours:
                _make_parts(folder)
                yield folder
                return


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Lock a folder; yield whether no other process has it. It is deleted before and after."""
    with open(f"{folder}.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = os.path.samestat(os.fstat(lock.fileno()), os.stat(lock.name))
        except (BlockingIOError, FileNotFoundError):  # in use, or just deleted by its owner
            is_ours = False
        if not is_ours:
            yield False
            return
        try:
            _delete(folder)
            yield True
        finally:
            _delete(folder)
            os.unlink(lock.name)


@functools.cache
def _root() -> Path:
    """Return the folder of all workspaces, without those of processes that have been killed."""
    root = Path(tempfile.gettempdir(), f"ppojob-workspaces-{os.getuid()}")
    root.mkdir(mode=_MODE, exist_ok=True)
    if root.stat().st_uid != os.getuid() or root.is_symlink():
        raise PermissionError(f"{root}: belongs to another user")
    for lock in root.glob("*.lock"):
        with _locked(lock.with_suffix("")):
            pass
    return root
