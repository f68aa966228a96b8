"""Fork server: imports the libraries of ranks once, and forks a process for each request.

Importing PyTorch and transformers takes seconds in every rank and at every restart; a fork has them
in milliseconds. `fork-server` serves ranks and controllers, `vllm-fork-server` has also imported
vLLM, and `supervisor-server` serves supervisors (docs/adr/0057). A fork has the environment,
working directory, process group and descriptors of its request (docs/adr/0024). It is killed when
its client or the server ends.

The server has one thread, so that no lock is held during a fork.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ppojob_api import contract
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.heartbeat_pipe import die_with_parent
from ppojob_trainer.supervisor.forked_process import ForkRequest

_RANK_MODULES = (
    "torch",
    "torch.distributed.fsdp",
    "transformers.modeling_utils",
    "transformers.models.auto.modeling_auto",
    "ppojob_trainer.workers.main",
    "ppojob_trainer.workers.actor_rollout",
    "ppojob_trainer.controller.main",
    "ppojob_trainer.rollout.huggingface_engine",
)
_VLLM_MODULES = ("ppojob_trainer.rollout.vllm_engine", "vllm.v1.worker.cpu_worker")
LOADED: Final = {
    "fork-server": _RANK_MODULES,
    "vllm-fork-server": (*_RANK_MODULES, *_VLLM_MODULES),
    "supervisor-server": ("ppojob_trainer.supervisor.main",),
}
"""Modules that each server imports."""

_REQUEST_BYTES = 1 << 20
_DESCRIPTORS = 3
_ARGUMENTS_IN_STAT = slice(45, 47)
"""Fields arg_start and arg_end of proc(5) stat, counted after the process name."""


@dataclass(frozen=True)
class _Fork:
    connection: socket.socket
    pid: int
    pidfd: int


class _Server:
    """Event loop over connections without a request yet, and over those of running forks."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)
        self._waiting: dict[int, socket.socket] = {}
        self._by_connection: dict[int, _Fork] = {}
        self._by_pidfd: dict[int, _Fork] = {}

    def next_fork(self) -> tuple[ForkRequest, list[int]]:
        """Serve forever; return only in a fork, with its request and descriptors."""
        while True:
            events = dict(self._poll.poll())
            # Closed connections first: a client that reconnects has abandoned its old process.
            for connection in self._by_connection.keys() & events.keys():
                self._kill(self._by_connection.pop(connection))
            for pidfd in self._by_pidfd.keys() & events.keys():
                self._reap(self._by_pidfd.pop(pidfd))
            for connection in self._waiting.keys() & events.keys():
                self._poll.unregister(connection)
                request = self._fork(self._waiting.pop(connection), events[connection])
                if request is not None:
                    return request
            if self._listener.fileno() in events:
                accepted, _ = self._listener.accept()
                self._waiting[accepted.fileno()] = accepted
                self._poll.register(accepted, select.POLLIN)

    def _fork(self, connection: socket.socket, event: int) -> tuple[ForkRequest, list[int]] | None:
        """Read a request and fork; return the request in the fork, None in the server."""
        descriptors: list[int] = []
        try:
            if event & (select.POLLHUP | select.POLLERR):
                raise ConnectionError("the client is gone")
            text, descriptors, _, _ = socket.recv_fds(connection, _REQUEST_BYTES, _DESCRIPTORS)
            request = ForkRequest(**json.loads(text))
            pid = os.fork()
        except (OSError, ValueError, TypeError) as problem:
            sys.stderr.write(f"fork server: nothing was forked: {problem}\n")
            sys.stderr.flush()
            connection.close()
        else:
            if pid == 0:
                connection.close()
                self._close()
                return request, descriptors
            self._track(connection, pid, request)
        for descriptor in descriptors:
            os.close(descriptor)
        return None

    def _track(self, connection: socket.socket, pid: int, request: ForkRequest) -> None:
        fork = _Fork(connection, pid, os.pidfd_open(pid))
        with contextlib.suppress(OSError):  # the fork also does it, whichever is first
            os.setpgid(pid, request.group)
        self._by_connection[connection.fileno()] = fork
        self._by_pidfd[fork.pidfd] = fork
        self._poll.register(connection, select.POLLIN)
        self._poll.register(fork.pidfd, select.POLLIN)
        with contextlib.suppress(ConnectionError):  # the poll reports it
            socket.send_fds(connection, [str(pid).encode()], [fork.pidfd])

    def _kill(self, fork: _Fork) -> None:
        os.kill(fork.pid, signal.SIGKILL)  # not reaped yet, so the pid is still its own
        self._poll.unregister(fork.connection)
        fork.connection.close()

    def _reap(self, fork: _Fork) -> None:
        code = os.waitstatus_to_exitcode(os.waitpid(fork.pid, 0)[1])
        self._poll.unregister(fork.pidfd)
        os.close(fork.pidfd)
        if self._by_connection.pop(fork.connection.fileno(), None) is not None:
            self._poll.unregister(fork.connection)
            with contextlib.suppress(ConnectionError):
                fork.connection.send(str(code).encode())
            fork.connection.close()

    def _close(self) -> None:
        """Close the server's descriptors, in a fork."""
        for connection in (self._listener, *self._waiting.values()):
            connection.close()
        for fork in self._by_pidfd.values():
            fork.connection.close()
            os.close(fork.pidfd)


def serve(name: str) -> str:
    """Import the modules of a server and serve; return only in a fork, with its subcommand.

    The listening socket is standard input. ConfigError if an import has started threads, which a
    fork would not have.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    listener = socket.socket(fileno=os.dup(0))
    devnull = os.open(os.devnull, os.O_RDWR)
    os.dup2(devnull, 0)
    os.close(devnull)
    gc.disable()  # collections during the imports take a second
    for module in LOADED[name]:
        importlib.import_module(module)
    if (threads := len(os.listdir("/proc/self/task"))) > 1:
        raise ConfigError(f"{name}: got {threads} threads: processes are not forked")
    gc.freeze()  # forks do not collect the imported objects
    gc.enable()
    server = os.getpid()
    request, descriptors = _Server(listener).next_fork()
    _set_up_fork(server, request, descriptors)
    _set_title(request.command, name)
    return request.command


def _set_up_fork(server: int, request: ForkRequest, descriptors: list[int]) -> None:
    """Set up a fork like a new process; a rank sets its threads itself (`open_role_world`)."""
    die_with_parent(server)
    output, errors, *heartbeat = descriptors
    with contextlib.suppress(PermissionError):
        os.setpgid(0, request.group)
    os.dup2(output, 1)
    os.dup2(errors, 2)
    os.close(output)
    os.close(errors)
    os.chdir(request.folder)
    if not sys.flags.safe_path:
        sys.path[0] = request.folder  # as `python -m` does
    os.environ.clear()
    os.environ.update(request.environment)
    if heartbeat:
        os.environ[contract.ENV_HEARTBEAT] = str(heartbeat[0])
    os.environ[contract.ENV_DIE_WITH_PARENT] = str(server)
    tempfile.tempdir = None  # read TMPDIR again


def _set_title(command: str, server: str) -> None:
    """Show a fork's own command in the process list."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    first, last = map(int, fields[_ARGUMENTS_IN_STAT])
    shown = Path("/proc/self/cmdline").read_bytes()
    shown = shown.replace(b"\0%b\0" % server.encode(), b"\0%b\0" % command.encode())
    ctypes.memmove(first, shown.ljust(last - first, b"\0"), last - first)
