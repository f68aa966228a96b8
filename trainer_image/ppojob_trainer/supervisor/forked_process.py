"""Client of the fork server (`ppojob_trainer.fork_server`)."""

import contextlib
import hashlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, TypeAlias

_FACTS = "facts.json"
_BACKLOG = 1024
_ANSWER_BYTES = 64
_SLOW_MS = 2_000
_ALLOCATOR: Final = {
    # A step frees and allocates the same gigabytes repeatedly: keep them, in large pages.
    "MALLOC_MMAP_THRESHOLD_": str(4 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(16 << 30),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
"""Measured on an update of 6.5 s: system time 0.6 s -> 0.02 s."""

_SET_IN_FORK: Final = frozenset({"OMP_NUM_THREADS", "MKL_NUM_THREADS", "TMPDIR"})
"""Variables that a fork applies itself, so that they may differ from the server's."""


@dataclass(frozen=True)
class ForkRequest:
    """Request for a process; its descriptors are sent with it."""

    command: str
    environment: dict[str, str]
    folder: str
    group: int


def rank_variables(threads: int) -> dict[str, str]:
    """Return the environment variables that are set for every rank."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        # Idle threads must not spin: another process may need the core.
        "OMP_WAIT_POLICY": "PASSIVE",
        **_ALLOCATOR,
        # The jemalloc of pyarrow would start a thread.
        "JE_ARROW_MALLOC_CONF": "background_thread:false",
        "TOKENIZERS_PARALLELISM": "false",
        "TQDM_DISABLE": "1",
    }


def listen(folder: Path, environment: Mapping[str, str]) -> socket.socket:
    """Create the folder and the socket of a server with this environment; it may load later."""
    folder.mkdir(mode=0o700)
    (folder / _FACTS).write_text(json.dumps(_facts(environment)))
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with _socket_in(folder) as path:
        listener.bind(path)
    listener.listen(_BACKLOG)
    return listener


def is_compatible(folder: Path, environment: Mapping[str, str]) -> bool:
    """Whether a server can fork processes with this environment; OSError if there is no server."""
    return bool(json.loads((folder / _FACTS).read_text()) == _facts(environment))


def _facts(environment: Mapping[str, str]) -> dict[str, object]:
    """Return the properties that must be equal for a server and its client.

    These are the variables that libraries may read at import, the session (a process cannot join a
    group of another one) and the interpreter. Relative paths of PYTHONPATH are resolved at start.
    """
    read = {
        name: value
        for name, value in environment.items()
        if not name.startswith("PPOJOB_") and name not in _SET_IN_FORK
    }
    if path := read.get("PYTHONPATH"):
        read["PYTHONPATH"] = ":".join(map(os.path.abspath, path.split(":")))
    digest = hashlib.sha256(json.dumps(sorted(read.items())).encode()).hexdigest()
    return {"environment": digest, "session": os.getsid(0), "python": sys.executable}


@contextmanager
def _socket_in(folder: Path) -> Iterator[str]:
    """Yield a short path of a server's socket: the kernel allows 107 bytes."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/socket"
    finally:
        os.close(descriptor)


class ForkClient:
    """Requests processes from one fork server; disabled for good after a failure."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._failure: str | None = None

    def disable(self, why: str) -> None:
        """Refuse all further requests."""
        self._failure = self._failure or why

    def fork(
        self,
        command: str,
        environment: Mapping[str, str],
        heartbeat: int | None = None,
        outputs: tuple[int, int] = (1, 2),
        group: int | None = None,
    ) -> "ForkedProcess":
        """Request a process; the server forks it later.

        Args:
            command: a subcommand of `ppojob_trainer`.
            environment: the whole environment of the process.
            heartbeat: writing end of its heartbeat pipe; None for a supervisor.
            outputs: its standard output and standard error.
            group: its process group; 0 for a new one, None for that of this process.

        Raises:
            OSError: the server is gone or disabled, or cannot fork with this environment.
        """
        if self._failure is not None:
            raise OSError(self._failure)
        if not is_compatible(self._folder, environment):
            raise OSError("its libraries were loaded in another environment or session")
        group = os.getpgrp() if group is None else group
        request = ForkRequest(command, dict(environment), os.getcwd(), group)
        descriptors = [*outputs, *([] if heartbeat is None else [heartbeat])]
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with _socket_in(self._folder) as path:
                connection.connect(path)
            socket.send_fds(connection, [json.dumps(asdict(request)).encode()], descriptors)
        except BaseException:
            connection.close()
            raise
        return ForkedProcess(self, connection)


class ForkedProcess:
    """A process of the fork server, with the interface of `subprocess.Popen`.

    Attributes:
        pid: process id; 0 before the fork.
        returncode: negative for a signal; None before the fork and while it runs.
    """

    def __init__(self, client: ForkClient, connection: socket.socket) -> None:
        self._client = client
        self._connection = connection
        self._pidfd: int | None = None  # unlike a pid, never reused
        self._pending_signals: list[int] = []  # sent before the fork
        self.pid = 0
        self.returncode: int | None = None

    def is_forked_within(self, seconds: float) -> bool:
        """Wait for the fork; return False on a timeout, or if the server has ended."""
        if not self.pid and _is_readable(self._connection.fileno(), int(seconds * 1000)):
            self._receive()
        return self.pid > 0

    def poll(self) -> int | None:
        """Read the messages of the server; return `returncode`."""
        while self.returncode is None and _is_readable(self._connection.fileno(), 0):
            self._receive()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, after the fork if necessary; SIGKILL before it cancels the request."""
        if self._pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)
        elif number == signal.SIGKILL:
            self._client.disable("it was too slow to fork a process that was to end")
            self._finish(-signal.SIGKILL)
        else:
            self._pending_signals.append(number)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process; return `returncode`, or raise TimeoutExpired."""
        while self.returncode is None:
            if self._pidfd is not None:
                milliseconds = None if timeout is None else int(timeout * 1000)
                if not _is_readable(self._pidfd, milliseconds):
                    raise subprocess.TimeoutExpired("forked", timeout or 0.0)
            if self._pidfd is None or _is_readable(self._connection.fileno(), _SLOW_MS):
                self._receive()
            else:
                self._client.disable("it does not answer")
                self._finish(-signal.SIGKILL)
        return self.returncode

    def _receive(self) -> None:
        """Read one message: pid and pidfd after the fork, then the exit code; empty at the end."""
        answer = b""
        descriptors: list[int] = []
        with contextlib.suppress(ConnectionError):
            answer, descriptors, _, _ = socket.recv_fds(self._connection, _ANSWER_BYTES, 1)
        if descriptors:
            (self._pidfd,) = descriptors
            self.pid = int(answer)
            for number in self._pending_signals:
                self.send_signal(number)
        elif answer:
            self._finish(int(answer))
        else:
            self._client.disable("it has ended")
            if self._pidfd is not None:
                _is_readable(self._pidfd, None)  # the kernel kills the forks of an ended server
            self._finish(-signal.SIGKILL)

    def _finish(self, code: int) -> None:
        self.returncode = code
        self._connection.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None


Process: TypeAlias = subprocess.Popen[bytes] | ForkedProcess


def _is_readable(descriptor: int, milliseconds: int | None) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(milliseconds))
