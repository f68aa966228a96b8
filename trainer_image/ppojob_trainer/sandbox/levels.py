"""Isolation levels of the sandbox that this machine supports."""

import ctypes
import enum
import errno
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ppojob_trainer.sandbox import inside
from ppojob_trainer.sandbox.system_calls import FilterError, Shell, filter_program

_OF_SHELLS = (
    *("/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime", "/etc/nsswitch.conf"),
    *("/etc/passwd", "/etc/group"),
    # Debian's Python imports a module from there at each start.
    "/etc/python{}.{}".format(*sys.version_info),
)
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
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
    writable: tuple[str, ...] = ()

    @property
    def level(self) -> Level:
        """The level, if the means work."""
        if not (self.landlock and self.filter):
            return Level.NONE
        return Level.NAMESPACES if self.command else Level.RESTRICTED

    @property
    def description(self) -> str:
        """The level, and why it is not higher."""
        limitation = f" ({self.limitation})" if self.limitation else ""
        return f"sandbox level {self.level.name.lower()}{limitation}"

    def without_namespaces(self, reason: str) -> "Isolation":
        """Return the same without bubblewrap, for a reason."""
        return replace(self, command=(), limitation=reason)

    def without_any(self, reason: str) -> "Isolation":
        """Return no isolation, for a reason."""
        return replace(self, landlock=0, filter=b"", command=(), limitation=reason)


def supported_isolation() -> Isolation:
    """Return all isolation that this machine seems to support; test it with a program."""
    readable = existing(("/usr", "/lib", "/lib64", sys.base_prefix, sys.prefix))
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


def workspace_isolation(
    supported: Isolation, places: Mapping[str, str], readable: Iterable[str]
) -> Isolation:
    """Return the isolation of a workspace, with the means of an isolation that programs have.

    `places` are its folders, by their paths in a mount namespace. What contains them cannot be
    written: a command could put a link in their place, which the next one would have mounted.
    `readable` are more files and folders.
    """
    readable = existing((*supported.readable, "/bin", "/sbin", *_OF_SHELLS, *readable))
    if not supported.filter:
        return replace(supported, readable=readable)
    if supported.command:
        mounts = ["--dev", "/dev", "--proc", "/proc"]
        for inside_path, path in places.items():
            mounts += ["--bind", path, inside_path]
        return Isolation(
            supported.landlock,
            filter_program(Shell(signals=True, truncation=True)),
            _bubblewrap(supported.command[0], readable, mounts),
            readable,
            writable=(*places, *_DEVICES),
        )
    signals = supported.landlock >= inside.SCOPES_SINCE
    truncation = supported.landlock >= inside.TRUNCATION_SINCE
    return replace(
        supported,
        filter=filter_program(Shell(signals, truncation)),
        readable=readable,
        writable=(*places.values(), *existing(_DEVICES)),
    )


def existing(paths: Iterable[str]) -> tuple[str, ...]:
    """Return the paths that exist, each once."""
    return tuple(dict.fromkeys(path for path in paths if Path(path).exists()))


def _bubblewrap(
    program: str, readable: tuple[str, ...], mounts: Sequence[str] = ()
) -> tuple[str, ...]:
    command = [program, "--unshare-all", "--die-with-parent", "--cap-drop", "ALL", "--chdir", "/"]
    for path in readable:
        command += ["--ro-bind", path, path]
    return (*command, *mounts, "--remount-ro", "/", "--")


def _landlock() -> tuple[int, str]:
    """Return the version of the kernel's interface, or 0 and why there is none."""
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), _LANDLOCK_VERSION)
    if version > 0:
        return version, ""
    error = ctypes.get_errno()
    return 0, _NO_LANDLOCK.get(error, f"Landlock: {os.strerror(error)}")
