"""Guardian: the parent of a worker process, which kills all its descendants at the end."""

import contextlib
import ctypes
import os
import resource
import select
import signal
import sys
from collections.abc import Callable, Iterator
from typing import NoReturn

from ppojob_trainer.children.frames import read_frame, write_frame

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_ID_BYTES = 4
SIGNALLED_STATUS = 128
"""Exit status of the guardian, minus the number of the signal that killed the worker."""


def main(start: Callable[[], Callable[[bytes], bytes]]) -> NoReturn:
    """Fork the worker, watch it, and exit with its status.

    `start` is called in the worker, and returns its function from a request to an answer. The
    arguments of the process are those of ``ppojob_trainer.children.process``: the descriptors of
    requests, answers and end pipe, and the memory limit in bytes (0: none).
    """
    requests, answers, end_pipe, memory_bytes = map(int, sys.argv[1:])
    worker = _forked(end_pipe)
    if worker == 0:
        _confine(memory_bytes)
        for descriptor in (requests, answers):
            os.set_inheritable(descriptor, False)
        _answer_requests(requests, answers, start())
        sys.exit()
    os.close(requests)
    os.close(answers)
    sys.exit(_watch(worker, end_pipe))


def run_program(arguments: list[str]) -> int:
    """Run a trusted program in the same way, without limits; return its exit status.

    `arguments` are the descriptor of the end pipe, and the program with its arguments.
    """
    end_pipe = int(arguments[0])
    program = _forked(end_pipe)
    if program == 0:
        os.execvp(arguments[1], arguments[1:])
    return _watch(program, end_pipe)


@contextlib.contextmanager
def guarded(run: Callable[[int], None]) -> Iterator[tuple[int, int]]:
    """Run a function in a forked process with its own guardian.

    The function gets a descriptor to write to; the block gets the id of its process, and the
    descriptor to read from. After the block, both processes and all their descendants are gone.
    """
    (read, write), (end_pipe, end) = os.pipe(), os.pipe()
    flush()
    guardian = os.fork()
    if guardian == 0:
        try:
            os.close(end)
            worker = _forked(end_pipe)
            if worker == 0:
                os.write(write, os.getpid().to_bytes(_ID_BYTES))
                run(write)
                flush()
            else:
                os.close(write)
                _watch(worker, end_pipe)
        finally:
            os._exit(0)
    os.close(write)
    os.close(end_pipe)
    try:
        yield int.from_bytes(os.read(read, _ID_BYTES)), read
    finally:
        os.close(end)
        os.waitpid(guardian, 0)
        os.close(read)


def _forked(end_pipe: int) -> int:
    """Fork a worker and become its guardian; return its id, and 0 in the worker."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    guardian = os.getpid()
    worker = os.fork()
    if worker == 0:
        os.close(end_pipe)
        _live_with(guardian)
    return worker


def _live_with(guardian: int) -> None:
    """Start a new session in the worker, which dies with its guardian."""
    os.setsid()
    # A rank may block it, but users' code may need it to end what it started.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guardian:  # it died before the line above took effect
        os._exit(1)


def _confine(memory_bytes: int) -> None:
    """Limit the worker's memory, and have the kernel kill it first if memory is short."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory_bytes:
        # Data, not address space: libraries such as torch map tens of GB they never touch.
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    path = "/proc/self/oom_score_adj"
    with contextlib.suppress(OSError), open(path, "w", encoding="ascii") as file:
        file.write("1000")


def _watch(worker: int, end_pipe: int) -> int:
    """Wait until the worker ends or the end pipe closes; kill all descendants."""
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write)
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    poll = select.poll()
    poll.register(end_pipe, select.POLLIN)
    poll.register(wake_read, select.POLLIN)
    while (status := _reap(worker)) is None:
        ready = dict(poll.poll())
        if wake_read in ready:
            os.read(wake_read, 4096)
        if end_pipe in ready:
            break
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker, signal.SIGKILL)
    last = _end_all(worker)
    code = os.waitstatus_to_exitcode(last if status is None else status)
    return code if code >= 0 else SIGNALLED_STATUS - code


def _answer_requests(requests: int, answers: int, answer: Callable[[bytes], bytes]) -> None:
    """Answer requests until the parent closes its end."""
    own = os.getpid()
    while (body := read_frame(requests)) is not None:
        answered = answer(body)
        flush()
        if os.getpid() != own:  # users' code forked, and its child returned here, too
            os._exit(0)
        write_frame(answers, answered)


def flush() -> None:
    """Flush the output before the answer; users' code may have closed the streams."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (ValueError, OSError, AttributeError):
            continue


def _reap(worker: int) -> int | None:
    """Reap all ended children; return the wait status of the worker, if it is one of them."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return 0
        if pid == 0:
            return None
        if pid == worker:
            return status


def _end_all(worker: int) -> int:
    """Kill and reap children until there is none; return the worker's wait status, or 0.

    Orphans become children of this subreaper, so the loop also reaches processes in other sessions.
    """
    found = 0
    while True:
        for pid in _children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return found
        if pid == worker:
            found = status


def _children() -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            # The command, in brackets, may contain any bytes.
            parent = int(file.read().rpartition(b")")[2].split()[1])
            if parent == os.getpid():
                found.append(int(name))
    return found


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        sys.exit(f"prctl({option}): {os.strerror(ctypes.get_errno())}")
