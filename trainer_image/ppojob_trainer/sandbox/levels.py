"""Isolation levels of the sandbox that this machine supports."""

import ctypes
import enum
import errno
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from ppojob_trainer.sandbox.system_calls import FilterError, filter_program

_LANDLOCK_CREATE = 444
_LANDLOCK_VERSION = 1
_NO_LANDLOCK = {
    errno.EPERM: "the container runtime's seccomp profile refuses landlock_* calls",
    errno.ENOSYS: "the kernel has no Landlock",
    errno.EOPNOTSUPP: "Landlock is turned off in the kernel",
}


class Level(enum.IntEnum):
    """What stands between a program and the machine; each level has all of the one before."""

    NONE = 0
    """Limits on memory, time, output and threads, and an empty environment. No wall."""

    RESTRICTED = 1
    """Seccomp and Landlock, which need no privilege: no network, no processes, no file but the
    interpreter's, no signals. What a pod under Pod Security `restricted` can give."""

    NAMESPACES = 2
    """Besides, bubblewrap: user, process, mount, network and IPC namespaces of its own."""


@dataclass(frozen=True, slots=True)
class Walls:
    """What a process is isolated with.

    Attributes:
        landlock: version of the kernel's interface; 0 without.
        filter: program for seccomp; empty without.
        command: bubblewrap's, in front of the interpreter's command line, or empty.
        readable: folders that can be read.
        lacking: why there is no more, for messages; empty where nothing is lacking.
    """

    landlock: int
    filter: bytes
    command: tuple[str, ...]
    readable: tuple[str, ...]
    lacking: str = ""

    @property
    def level(self) -> Level:
        """The level that these walls make, if they hold."""
        if not (self.landlock and self.filter):
            return Level.NONE
        return Level.NAMESPACES if self.command else Level.RESTRICTED

    def without_namespaces(self, reason: str) -> "Walls":
        """The same but for bubblewrap."""
        return Walls(self.landlock, self.filter, (), self.readable, reason)

    def without_any(self, reason: str) -> "Walls":
        """None of them."""
        return Walls(0, b"", (), self.readable, reason)


def walls_here() -> Walls:
    """All walls that this machine seems to have; whether they hold, a program has to try."""
    readable = _readable()
    try:
        instructions = filter_program()
    except FilterError as error:
        return Walls(0, b"", (), readable, str(error))
    landlock, reason = _landlock()
    if not landlock:
        return Walls(0, b"", (), readable, reason)
    bubblewrap = shutil.which("bwrap")
    if bubblewrap is None:
        return Walls(landlock, instructions, (), readable, "bubblewrap is not installed")
    return Walls(landlock, instructions, _bubblewrap(bubblewrap, readable), readable)


def _readable() -> tuple[str, ...]:
    """The system's libraries, and the interpreter's with the packages that are installed for it."""
    folders = ("/usr", "/lib", "/lib64", sys.base_prefix, sys.prefix)
    return tuple(dict.fromkeys(folder for folder in folders if Path(folder).is_dir()))


def _bubblewrap(program: str, readable: tuple[str, ...]) -> tuple[str, ...]:
    command = [program, "--unshare-all", "--die-with-parent", "--cap-drop", "ALL", "--chdir", "/"]
    for folder in readable:
        command += ["--ro-bind", folder, folder]
    return (*command, "--remount-ro", "/", "--")


def _landlock() -> tuple[int, str]:
    """The version of the kernel's interface, or why there is none."""
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), _LANDLOCK_VERSION)
    if version > 0:
        return version, ""
    error = ctypes.get_errno()
    return 0, _NO_LANDLOCK.get(error, f"Landlock: {os.strerror(error)}")
