"""Untrusted program: its input, its outcome, and its process."""

import contextlib
import io
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType

from ppojob_trainer.sandbox import inside

_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
}
_INSIDE = Path(inside.__file__).read_text(encoding="utf-8")
_LOOK_SECONDS = 0.02
"""Interval at which the number of threads is checked."""
_FEW_THREADS = 32
"""More of them are stopped while they are counted, so that they cannot start others meanwhile."""
_PIECE = 1 << 16


@dataclass(frozen=True, slots=True)
class Limits:
    """Resource limits of a program."""

    seconds: float = 10.0  # wall time and, rounded up, processor time
    memory_bytes: int = 1 << 30  # address space
    output_bytes: int = 8 << 20  # all output together
    threads: int = 64  # of all its processes


@dataclass(frozen=True, slots=True)
class Program:
    """Untrusted Python code."""

    code: str
    prelude: str = ""  # trusted code, which runs before it in the same module
    stdin: str = ""
    # A trusted expression for a function of the code; its return value is the answer. Empty if the
    # code is a whole program.
    function: str = ""
    arguments: str = "[]"  # of that function, a JSON list
    integer_keys: bool = False  # whether the keys of the first argument, an object, are integers

    def message(self, nonce: str) -> dict[str, object]:
        """Return the message for its process, which has everything except stdin."""
        message = {**asdict(self), "nonce": nonce}
        del message["stdin"]
        return message


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a program."""

    stdout: bytes
    answer: bytes  # return value of the function in JSON; empty for none
    errors: bytes
    status: int  # exit status, negative for a signal
    stopped: str  # the exceeded limit: ``time``, ``output``, ``threads``, ...; empty for none

    @property
    def is_well(self) -> bool:
        """Whether it ended by itself, without an error, and within its limits."""
        return self.status == 0 and not self.stopped

    @property
    def is_python(self) -> bool:
        """Whether its code compiles, as reported by its process."""
        return self.status != inside.NOT_PYTHON


def after_nonce(given: bytes, nonce: str) -> bytes:
    """Return the answer that follows the nonce; empty without the nonce."""
    mark = nonce.encode()
    return given.removeprefix(mark) if given.startswith(mark) else b""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process and its descendants use."""

    pids: tuple[int, ...]
    threads: int
    memory_bytes: int


def run_process(
    command: Sequence[str],
    message: bytes,
    stdin: bytes,
    limits: Limits,
    variables: Mapping[str, str] = MappingProxyType({}),
    exceeded: Callable[[Usage], str] = lambda _: "",
) -> Outcome:
    """Run `ppojob_trainer.sandbox.inside` in a new interpreter.

    `command` is the prefix of its command line, `message` a Python literal for it, and `stdin` that
    of the program. The outcome's answer is everything that was written to the pipe for answers.
    `variables` are for its environment. `exceeded` returns a further limit that it exceeds, or an
    empty text.
    """
    with contextlib.ExitStack() as pipes:
        message_read, message_write = _pipe(pipes)
        answer_read, answer_write = _pipe(pipes)
        given = (message_read.fileno(), answer_write.fileno())
        # -S: installed packages may run code at every start.
        python = (sys.executable, "-P", "-s", "-S", "-B", "-c", _INSIDE, *map(str, given))
        process = subprocess.Popen(
            (*command, *python),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=given,
            env={**_ENVIRONMENT, **variables},
            cwd="/",
            start_new_session=True,
            bufsize=0,
        )
        message_read.close()
        answer_write.close()
        out, errors = raw(process.stdout, pipes), raw(process.stderr, pipes)
        traffic = Traffic(
            unsent={message_write: message, raw(process.stdin, pipes): stdin},
            taken={stream: bytearray() for stream in (out, errors, answer_read)},
        )
        try:
            stopped = _watch(process.pid, traffic, limits, exceeded)
        finally:
            # The process is not reaped yet, so the number is still its group's.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            status = process.wait()
            with contextlib.suppress(ChildProcessError):  # no more orphans of its group
                while True:
                    os.waitpid(-process.pid, 0)
        taken = {stream: bytes(body) for stream, body in traffic.taken.items()}
    return Outcome(
        taken[out],
        taken[answer_read],
        taken[errors],
        status,
        stopped,
    )


class Traffic:
    """Sends `unsent` bytes to streams, which it then closes, and receives from those of `taken`."""

    def __init__(self, unsent: dict[io.FileIO, bytes], taken: dict[io.FileIO, bytearray]) -> None:
        self._unsent = {stream: memoryview(body) for stream, body in unsent.items()}
        self.taken = taken
        self.selector = selectors.DefaultSelector()
        for stream in (*unsent, *taken):
            os.set_blocking(stream.fileno(), False)
            event = selectors.EVENT_WRITE if stream in unsent else selectors.EVENT_READ
            self.selector.register(stream, event)

    @property
    def taken_bytes(self) -> int:
        """Number of received bytes."""
        return sum(map(len, self.taken.values()))

    def move(self, seconds: float) -> None:
        """Send and receive once, if a stream becomes ready in time."""
        for key, _ in self.selector.select(seconds):
            if isinstance(key.fileobj, io.FileIO):
                self._send(key.fileobj) if key.fileobj in self._unsent else self._take(key.fileobj)

    def drain(self, most_bytes: int) -> None:
        """Receive what the pipes still hold after the process has ended."""
        for stream in list(self.taken):
            while not stream.closed and self.taken_bytes <= most_bytes:
                if not self._take(stream):
                    break

    def _send(self, stream: io.FileIO) -> None:
        try:
            sent = stream.write(self._unsent[stream][:_PIECE])
        except BrokenPipeError:  # the program does not read it
            sent = len(self._unsent[stream])
        self._unsent[stream] = self._unsent[stream][sent or 0 :]
        if not self._unsent[stream]:
            self._finish(stream)

    def _take(self, stream: io.FileIO) -> bool:
        piece = stream.read(_PIECE)
        if piece == b"":
            self._finish(stream)
        self.taken[stream] += piece or b""
        return bool(piece)

    def _finish(self, stream: io.FileIO) -> None:
        self.selector.unregister(stream)
        stream.close()


def _watch(pid: int, traffic: Traffic, limits: Limits, exceeded: Callable[[Usage], str]) -> str:
    """Wait until a process ends or exceeds a limit; return the limit, or an empty text."""
    deadline = time.monotonic() + limits.seconds
    with contextlib.ExitStack() as opened:
        opened.callback(traffic.selector.close)
        with contextlib.suppress(OSError):  # else the end is noticed at the next check
            ended = os.pidfd_open(pid)
            opened.callback(os.close, ended)
            traffic.selector.register(ended, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0:
            traffic.move(min(left, _LOOK_SECONDS))
            if traffic.taken_bytes > limits.output_bytes:
                return "output"
            usage = _usage(pid, limits.threads)
            if usage.threads > limits.threads:
                return "threads"
            if limit := exceeded(usage):
                return limit
            if _has_ended(pid):
                traffic.drain(limits.output_bytes)
                return "output" if traffic.taken_bytes > limits.output_bytes else ""
        return "time"


def _has_ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _usage(pid: int, most_threads: int) -> Usage:
    """Return the usage of the leader of a process group; too many threads are left stopped."""
    threads = memory = 0
    pids = [pid]
    is_stopped = False
    for each in pids:  # which grows
        if threads > most_threads:
            break
        if threads > _FEW_THREADS and not is_stopped:
            os.killpg(pid, signal.SIGSTOP)
            is_stopped = True
        process = Path(f"/proc/{each}")
        with contextlib.suppress(OSError):  # it has just ended
            for thread in os.listdir(process / "task"):
                threads += 1
                children = (process / "task" / thread / "children").read_bytes()
                pids += map(int, children.split())
            memory += _memory_bytes((process / "status").read_text())
    if is_stopped and threads <= most_threads:
        os.killpg(pid, signal.SIGCONT)
    return Usage(tuple(pids), threads, memory)


def _memory_bytes(status: str) -> int:
    """Return the resident memory of a process, without the files that it has mapped."""
    lines = (line.split() for line in status.splitlines())
    return sum(int(line[1]) << 10 for line in lines if line[0] in ("RssAnon:", "RssShmem:"))


def _pipe(pipes: contextlib.ExitStack) -> tuple[io.FileIO, io.FileIO]:
    read, write = os.pipe()
    return pipes.enter_context(io.FileIO(read, "rb")), pipes.enter_context(io.FileIO(write, "wb"))


def raw(stream: object, pipes: contextlib.ExitStack) -> io.FileIO:
    """Return an unbuffered pipe of a process, which is closed with `pipes`."""
    assert isinstance(stream, io.FileIO)
    return pipes.enter_context(stream)
