"""Heartbeat pipe from a process to its supervisor.

The process writes lines: a heartbeat per second from a thread (it stops when the process is stopped
or the interpreter hangs), `ready` once it serves, `progress` after each step, and `error` with the
reason before it fails. The supervisor reads without blocking.
"""

import ctypes
import json
import os
import signal
import sys
import threading
import time

BEAT_SECONDS = 1.0
_READY = b"ready"
_PROGRESS = b"progress"
_ERROR = b"error "
_ERROR_CHARACTERS = 2000
_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel to kill this process when the thread that started it ends.

    Exits at once if `parent_pid` is already gone.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(1)


class HeartbeatPipe:
    """Writing end of the pipe."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self._descriptor = descriptor

    def start(self) -> None:
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    def report_ready(self) -> None:
        self._write(_READY)

    def report_progress(self) -> None:
        """Report a finished step, which resets the count of restarts without progress."""
        self._write(_PROGRESS)

    def report_error(self, message: str) -> None:
        """Report why the process fails; the message is cut to 2,000 characters."""
        self._write(_ERROR + json.dumps(message[:_ERROR_CHARACTERS]).encode())

    def _write(self, line: bytes) -> None:
        os.write(self._descriptor, line + b"\n")

    def _beat(self) -> None:
        while True:
            time.sleep(BEAT_SECONDS)
            try:
                self._write(b"beat")
            except OSError:
                sys.stderr.write("heartbeat: the supervisor is gone; exiting\n")
                os._exit(1)


class HeartbeatReader:
    """Reading end of the pipe.

    Attributes:
        last_beat: monotonic seconds of the last line; initially the start of the process.
        has_begun: whether any line has arrived.
        ready: whether the process serves.
        has_progressed: whether it has finished a step.
        error: the reported error, or empty.
    """

    def __init__(self, descriptor: int, now: float) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._rest = b""
        self.last_beat = now
        self.has_begun = False
        self.ready = False
        self.has_progressed = False
        self.error = ""

    def read(self, now: float) -> None:
        """Read the lines that have arrived; `now` is the current monotonic time."""
        while True:
            try:
                data = os.read(self._descriptor, 65536)
            except BlockingIOError:
                return
            if not data:
                return
            self.last_beat = now
            self.has_begun = True
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self.ready = self.ready or line == _READY
                self.has_progressed = self.has_progressed or line == _PROGRESS
                if line.startswith(_ERROR):
                    self.error = str(json.loads(line.removeprefix(_ERROR)))

    def close(self) -> None:
        os.close(self._descriptor)
