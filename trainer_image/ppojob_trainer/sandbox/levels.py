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
    """Isolation of a program; each level includes the one before."""

    NONE = 0
    """Limits on memory, time, output and threads, and an empty environment; no isolation."""

    RESTRICTED = 1
    """Seccomp and Landlock, which need no privilege: no network, no processes, no files except
    the interpreter's, no signals. Possible in a pod under Pod Security `restricted`."""

    NAMESPACES = 2
    """Also bubblewrap: separate user, process, mount, network and IPC namespaces."""


@dataclass(frozen=True, slots=True)
class Isolation:
    """Means of isolating a process."""

    landlock: int  # version of the kernel's interface; 0 for none
    filter: bytes  # program for seccomp; empty for none
    # Prefix of the interpreter's command line, for bubblewrap; empty for none.
    command: tuple[str, ...]
    readable: tuple[str, ...]
    limitation: str = ""  # why the level is not higher, for messages; empty at the highest

    @property
    def level(self) -> Level:
        """The level, if the means work."""
        if not (self.landlock and self.filter):
            return Level.NONE
        return Level.NAMESPACES if self.command else Level.RESTRICTED

    def without_namespaces(self, reason: str) -> "Isolation":
        """Return the same without bubblewrap, for a reason."""
        return Isolation(self.landlock, self.filter, (), self.readable, reason)

    def without_any(self, reason: str) -> "Isolation":
        """Return no isolation, for a reason."""
        return Isolation(0, b"", (), self.readable, reason)


def supported_isolation() -> Isolation:
    """Return all isolation that this machine seems to support; test it with a program."""
    readable = _readable()
    try:
        instructions = filter_program()
    except FilterError as error:
        return Isolation(0, b"", (), readable, str(error))
    landlock, reason = _landlock()
    if not landlock:
        return Isolation(0, b"", (), readable, reason)
    bubblewrap = shutil.which("bwrap")
    if bubblewrap is None:
        return Isolation(landlock, instructions, (), readable, "bubblewrap is not installed")
    return Isolation(landlock, instructions, _bubblewrap(bubblewrap, readable), readable)


def _readable() -> tuple[str, ...]:
    """Return the folders of the system's libraries, the interpreter and its packages."""
    folders = ("/usr", "/lib", "/lib64", sys.base_prefix, sys.prefix)
    return tuple(dict.fromkeys(folder for folder in folders if Path(folder).is_dir()))


def _bubblewrap(program: str, readable: tuple[str, ...]) -> tuple[str, ...]:
    command = [program, "--unshare-all", "--die-with-parent", "--cap-drop", "ALL", "--chdir", "/"]
    for folder in readable:
        command += ["--ro-bind", folder, folder]
    return (*command, "--remount-ro", "/", "--")


def _landlock() -> tuple[int, str]:
    """Return the version of the kernel's interface, or 0 and why there is none."""
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), _LANDLOCK_VERSION)
    if version > 0:
        return version, ""
    error = ctypes.get_errno()
    return 0, _NO_LANDLOCK.get(error, f"Landlock: {os.strerror(error)}")
