"""Bounded process: starts, calls and kills a child process with limits."""

import contextlib
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterable
from typing import IO

from ppojob_api import contract
from ppojob_api.problem import printable
from ppojob_trainer.children.frames import FrameBuffer, FrameError, pack_frame
from ppojob_trainer.children.guardian import SIGNALLED_STATUS

_ENVIRONMENT = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "PYTHONPATH",
                "LD_LIBRARY_PATH", contract.ENV_VISIBLE_GPUS)  # fmt: skip
_END_SECONDS = 2.0
_KEPT_BYTES = 16 * 1024
_LINE_CHARACTERS = 1024


class ChildTimeout(Exception):  # noqa: N818  it says what happened
    """The child gave no answer in time, and was killed; the text is as of ``ChildDied``."""


class ChildDied(Exception):  # noqa: N818
    """The child ended, or broke the protocol, before its answer; the text continues "the child"."""


class ChildKilled(ChildDied):
    """A SIGKILL ended it, most likely from outside, for instance because memory is short.

    Its own memory limit raises ``MemoryError`` in it instead.
    """


class BoundedProcess:
    """A child process that runs one of our modules, and communicates by frames over two pipes.

    The child has a few environment variables, no inherited descriptors except its own, and a memory
    limit; its output is logged, truncated at a limit. It dies with this process, together with its
    descendants (``ppojob_trainer.children.guardian``).

    Args:
        module: a module that calls ``guardian.main``.
        memory_bytes: limit of the child's data segment; None for no limit.
        variables: names of further environment variables that it inherits.
    """

    def __init__(
        self,
        module: str,
        *,
        memory_bytes: int | None,
        log: logging.Logger,
        variables: Iterable[str] = (),
    ) -> None:
        request_read, request_write = os.pipe()
        answer_read, answer_write = os.pipe()
        end_read, end_write = os.pipe()
        given = (request_read, answer_write, end_read)
        # -P: files in the working folder must not shadow modules of the child.
        command = [sys.executable, "-P", "-m", module, *map(str, given), str(memory_bytes or 0)]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=given,
                env=_environment(variables),
                start_new_session=True,
            )
        except BaseException:
            for descriptor in (request_write, answer_read, end_write):
                os.close(descriptor)
            raise
        finally:
            for descriptor in given:
                os.close(descriptor)
        assert self._process.stdout is not None
        self._requests = request_write
        self._answers = answer_read
        self._output = _Output(log, f"[{module.rpartition('.')[2]} {self._process.pid}]")
        self._output_fd = self._process.stdout.fileno()
        for descriptor in (request_write, answer_read, self._output_fd):
            os.set_blocking(descriptor, False)
        self._end_pipe = end_write
        self._lock = threading.Lock()
        self._finalizer = weakref.finalize(
            self,
            _end,
            self._process,
            self._process.stdout,
            (end_write, request_write, answer_read),
        )

    @property
    def pid(self) -> int:
        """Process id of the guardian, the parent of the worker."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the child can still be called."""
        return self._finalizer.alive

    def call(self, body: bytes, seconds: float) -> bytes:
        """Send one frame and wait for the complete answer, for at most `seconds`.

        Raises:
            ChildTimeout: no answer in time. The child has been killed.
            ChildDied: it ended or answered with garbage. What was left of it has been killed.
            ChildKilled: it ended, and by a SIGKILL.
        """
        if not self.is_alive:
            raise ChildDied("has been ended before")
        try:
            answer = self._exchange(memoryview(pack_frame(body)), seconds)
        except BaseException:
            self.kill()
            raise
        self._drain()
        self._output.flush()
        return answer

    def kill(self) -> None:
        """Kill the child and all its descendants, and wait for their end. Idempotent."""
        with self._lock:
            if self._finalizer.alive:
                self._drain()
                self._output.flush()
            self._finalizer()

    def abort(self) -> None:
        """Let the current call of another thread fail with ``ChildDied``."""
        with self._lock:
            if self._finalizer.alive:
                # Any input on the end pipe kills the child, as its end does.
                with contextlib.suppress(BrokenPipeError):
                    os.write(self._end_pipe, b"!")

    def _exchange(self, unsent: memoryview, seconds: float) -> bytes:
        """Send the request and log output until the answer is complete."""
        buffer, deadline = FrameBuffer(), time.monotonic() + seconds
        poll = select.poll()
        poll.register(self._answers, select.POLLIN)
        poll.register(self._output_fd, select.POLLIN)
        poll.register(self._requests, select.POLLOUT)
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise ChildTimeout(f"gave no answer in {seconds:g} s")
            for descriptor, _ in poll.poll(left * 1000):
                if descriptor == self._requests:
                    unsent = self._send(unsent)
                    if not unsent:
                        poll.unregister(self._requests)
                elif descriptor == self._output_fd:
                    if not self._take_output():
                        poll.unregister(self._output_fd)
                else:
                    answer = self._receive(buffer)
                    if answer is not None:
                        return answer

    def _send(self, unsent: memoryview) -> memoryview:
        try:
            return unsent[os.write(self._requests, unsent) :]
        except BlockingIOError:
            return unsent
        except BrokenPipeError:
            # The end of the answers follows, with the reason.
            return unsent[len(unsent) :]

    def _receive(self, buffer: FrameBuffer) -> bytes | None:
        piece = os.read(self._answers, 1 << 20)
        if not piece:
            raise self._death()
        try:
            return buffer.feed(piece)
        except FrameError as error:
            raise ChildDied(f"broke the protocol: {error}") from None

    def _take_output(self) -> bool:
        """Read one piece of output; False at its end."""
        try:
            piece = os.read(self._output_fd, 1 << 16)
        except BlockingIOError:
            return True
        self._output.feed(piece)
        return bool(piece)

    def _drain(self) -> None:
        """Read what the pipe holds now, 64 KiB, even if the writer continues."""
        with contextlib.suppress(BlockingIOError):
            for _ in range(2):
                self._output.feed(os.read(self._output_fd, 1 << 16))

    def _death(self) -> ChildDied:
        """Return how the child died, after the end of its answers."""
        try:
            code = self._process.wait(timeout=_END_SECONDS)
        except subprocess.TimeoutExpired:
            return ChildDied("closed its answers")
        self._drain()
        # The worker's signal, as reported by the guardian, else the guardian's own.
        number = code - SIGNALLED_STATUS if code > SIGNALLED_STATUS else -code
        ended = f"was killed by signal {number}" if number > 0 else f"ended with status {code}"
        last = self._output.last_line
        kind = ChildKilled if number == signal.SIGKILL else ChildDied
        return kind(f"{ended} ({last})" if last else ended)


class _Output:
    """Collects the output of one call and logs its beginning.

    The rest is counted and dropped, so a gigabyte of output costs a few kilobytes. Control
    characters are escaped.
    """

    def __init__(self, log: logging.Logger, label: str) -> None:
        self._log = log
        self._label = label
        self._kept = bytearray()
        self._dropped = 0

    def feed(self, piece: bytes) -> None:
        """Add a piece, truncated at the limit."""
        free = _KEPT_BYTES - len(self._kept)
        self._kept += piece[:free]
        self._dropped += max(0, len(piece) - free)

    @property
    def last_line(self) -> str:
        """The last collected line, which often is why a process ended."""
        lines = self._kept.decode("utf-8", errors="backslashreplace").splitlines()
        return printable(lines[-1], 200) if lines else ""

    def flush(self) -> None:
        """Log the collected output, and clear it."""
        for line in self._kept.decode("utf-8", errors="backslashreplace").splitlines():
            self._log.info("%s %s", self._label, printable(line, _LINE_CHARACTERS))
        if self._dropped:
            self._log.info("%s ... %d more bytes of output dropped", self._label, self._dropped)
        self._kept.clear()
        self._dropped = 0


def _environment(variables: Iterable[str]) -> dict[str, str]:
    kept = {name: os.environ[name] for name in (*_ENVIRONMENT, *variables) if name in os.environ}
    return kept | {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "PYTHONUTF8": "1"}


def _end(process: subprocess.Popen[bytes], output: IO[bytes], descriptors: tuple[int, ...]) -> None:
    """Close the end pipe, so that the guardian kills all; kill the guardian if it is slow."""
    for descriptor in descriptors:
        os.close(descriptor)
    # Closed before the wait: a writer on a full pipe gets an error instead of blocking.
    output.close()
    try:
        process.wait(timeout=_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
