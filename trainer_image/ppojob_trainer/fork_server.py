"""`ppojob_trainer fork-server`: loads what ranks of models need once, and forks each of them.

Loading PyTorch and transformers takes seconds of a core, in every rank and at every restart; a fork
has them in milliseconds. Controllers and ranks without a model are forked as well, where there is a
server. `vllm-fork-server` has loaded vLLM too, for jobs whose engine that is, and
`supervisor-server` does the same for supervisors (docs/adr/0057). To its job a fork is as any other
process (docs/adr/0024): it has the environment, folder, process group, descriptors and threads that
it is ordered with, and lives no longer than who ordered it, or than its server.

One thread serves, so that a fork finds no lock held by another.
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
from ppojob_trainer.supervisor.forked_process import Order

_OF_RANKS = (
    "torch",
    "torch.distributed.fsdp",
    "transformers.modeling_utils",
    "transformers.models.auto.modeling_auto",
    "ppojob_trainer.workers.main",
    "ppojob_trainer.workers.actor_rollout",
    "ppojob_trainer.controller.main",
    "ppojob_trainer.rollout.huggingface_engine",
)
_OF_VLLM = ("ppojob_trainer.rollout.vllm_engine", "vllm.v1.worker.cpu_worker")
"""The latter an engine would load as it starts, in each fork."""
LOADED: Final = {
    "fork-server": _OF_RANKS,
    "vllm-fork-server": (*_OF_RANKS, *_OF_VLLM),
    "supervisor-server": ("ppojob_trainer.supervisor.main",),
}
"""What each server loads."""

_ORDER_BYTES = 1 << 20
_DESCRIPTORS = 3
_ARGUMENTS_IN_STAT = slice(45, 47)
"""First and last address of a process's arguments, among the fields behind its name."""


@dataclass(frozen=True)
class _Fork:
    """A process that was forked: who asked for it, and what the kernel knows of it."""

    connection: socket.socket
    pid: int
    process: int  # a descriptor


class _Server:
    """Waits for orders; its connections are those that have not ordered yet, and of forks."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)
        self._waiting: dict[int, socket.socket] = {}
        self._forks: dict[int, _Fork] = {}  # by connection
        self._ended: dict[int, _Fork] = {}  # by process

    def next_fork(self) -> tuple[Order, list[int]]:
        """Serve for good; what this returns, it returns in a fork: what it was ordered as."""
        while True:
            events = dict(self._poll.poll())
            # Whoever asks again has closed before: what it had must not outlive that.
            for connection in self._forks.keys() & events.keys():
                self._kill(self._forks.pop(connection))
            for process in self._ended.keys() & events.keys():
                self._tell_end(self._ended.pop(process))
            for connection in self._waiting.keys() & events.keys():
                self._poll.unregister(connection)
                order = self._take_order(self._waiting.pop(connection), events[connection])
                if order is not None:
                    return order
            if self._listener.fileno() in events:
                accepted, _ = self._listener.accept()
                self._waiting[accepted.fileno()] = accepted
                self._poll.register(accepted, select.POLLIN)

    def _take_order(self, connection: socket.socket, event: int) -> tuple[Order, list[int]] | None:
        """Fork what a connection asks for; answers in the fork alone."""
        descriptors: list[int] = []
        try:
            if event & (select.POLLHUP | select.POLLERR):
                raise ConnectionError("nobody waits for it any more")
            text, descriptors, _, _ = socket.recv_fds(connection, _ORDER_BYTES, _DESCRIPTORS)
            order = Order(**json.loads(text))
            pid = os.fork()
        except (OSError, ValueError, TypeError) as problem:
            _say(f"nothing was forked: {problem}")
            connection.close()
        else:
            if pid == 0:
                connection.close()
                self._close()
                return order, descriptors
            self._keep(connection, pid, order)
        for descriptor in descriptors:
            os.close(descriptor)
        return None

    def _keep(self, connection: socket.socket, pid: int, order: Order) -> None:
        fork = _Fork(connection, pid, os.pidfd_open(pid))
        with contextlib.suppress(OSError):  # the fork does so too; one of both is the first
            os.setpgid(pid, order.group)
        self._forks[connection.fileno()] = fork
        self._ended[fork.process] = fork
        self._poll.register(connection, select.POLLIN)
        self._poll.register(fork.process, select.POLLIN)
        with contextlib.suppress(ConnectionError):  # which the poll will tell
            socket.send_fds(connection, [str(pid).encode()], [fork.process])

    def _kill(self, fork: _Fork) -> None:
        """Who ordered it is gone; the process is not reaped yet, so the number is still its own."""
        os.kill(fork.pid, signal.SIGKILL)
        self._poll.unregister(fork.connection)
        fork.connection.close()

    def _tell_end(self, fork: _Fork) -> None:
        code = os.waitstatus_to_exitcode(os.waitpid(fork.pid, 0)[1])
        self._poll.unregister(fork.process)
        os.close(fork.process)
        if self._forks.pop(fork.connection.fileno(), None) is not None:
            self._poll.unregister(fork.connection)
            with contextlib.suppress(ConnectionError):
                fork.connection.send(str(code).encode())
            fork.connection.close()

    def _close(self) -> None:
        """Let go of what is the server's, in a fork."""
        for connection in (self._listener, *self._waiting.values()):
            connection.close()
        for fork in self._ended.values():
            fork.connection.close()
            os.close(fork.process)


def serve(name: str) -> str:
    """Load, then fork for everyone who asks; comes back in each fork, never in the server.

    `name` is a server of `LOADED`; its listening socket is standard input.
    Returns the subcommand of this program that the fork is to run.

    Raises:
        ConfigError: loading has started threads, which a fork would not have.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    listener = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.close(nothing)
    gc.disable()  # among what is loaded there is no garbage worth a second of looking for it
    for module in LOADED[name]:
        importlib.import_module(module)
    if (threads := len(os.listdir("/proc/self/task"))) > 1:
        raise ConfigError(f"{name}: got {threads} threads: processes are started by themselves")
    # What is loaded stays: no collection looks at it, in no fork.
    gc.freeze()
    gc.enable()
    server = os.getpid()
    order, descriptors = _Server(listener).next_fork()
    _become(server, order, descriptors)
    _show_as(order.command, name)
    return order.command


def _become(server: int, order: Order, descriptors: list[int]) -> None:
    """Make a fork what a process is that was started as `ppojob_trainer COMMAND`.

    Its number of threads every rank sets itself (`open_role_world`).
    """
    die_with_parent(server)
    output, errors, *heartbeat = descriptors
    with contextlib.suppress(PermissionError):
        os.setpgid(0, order.group)
    os.dup2(output, 1)
    os.dup2(errors, 2)
    os.close(output)
    os.close(errors)
    os.chdir(order.folder)
    if not sys.flags.safe_path:
        sys.path[0] = order.folder  # as `python -m` has it
    os.environ.clear()
    os.environ.update(order.environment)
    if heartbeat:
        os.environ[contract.ENV_HEARTBEAT] = str(heartbeat[0])
    os.environ[contract.ENV_DIE_WITH_PARENT] = str(server)
    tempfile.tempdir = None  # found out anew, by TMPDIR


def _show_as(command: str, server: str) -> None:
    """Have the process list show a fork's own command, where people look for it."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    first, last = map(int, fields[_ARGUMENTS_IN_STAT])
    shown = Path("/proc/self/cmdline").read_bytes()
    shown = shown.replace(b"\0%b\0" % server.encode(), b"\0%b\0" % command.encode())
    ctypes.memmove(first, shown.ljust(last - first, b"\0"), last - first)


def _say(line: str) -> None:
    sys.stderr.write(f"fork server: {line}\n")
    sys.stderr.flush()
