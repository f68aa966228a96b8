"""The pipe between a process and the supervisor that started it.

The process writes lines: a heartbeat a second from a thread of its own (a thread that cannot run,
because the process is stopped or the interpreter is stuck, is what the supervisor must see),
`ready` once it serves, `progress` when a step is done, and, before it fails, why. The supervisor
reads them without ever blocking.
"""

import ctypes
import json
import os
import signal
import sys
import threading

BEAT_SECONDS = 1.0
_BEAT = b"beat\n"
_READY = b"ready\n"
_PROGRESS = b"progress\n"
_ERROR = b"error "
_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel to kill this process when the thread that started it ends.

    Where `parent_pid` is gone already, this process ends at once.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(1)


class HeartbeatPipe:
    """The process's end of the pipe."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self._descriptor = descriptor
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._stop = threading.Event()

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()

    def tell_ready(self) -> None:
        """Say that the process serves now."""
        os.write(self._descriptor, _READY)

    def tell_progress(self) -> None:
        """Say that something is done for good; the count of restarts begins anew."""
        os.write(self._descriptor, _PROGRESS)

    def tell_error(self, message: str) -> None:
        """Say why the process will end, in at most 2,000 characters."""
        line = json.dumps(message[:2000]).encode()
        os.write(self._descriptor, _ERROR + line + b"\n")

    def _beat(self) -> None:
        while not self._stop.wait(BEAT_SECONDS):
            try:
                os.write(self._descriptor, _BEAT)
            except OSError:
                # Nobody reads any more: the supervisor is gone, so this process has no pod.
                sys.stderr.write("heartbeat: the supervisor is gone; leaving\n")
                os._exit(1)


class HeartbeatReader:
    """The supervisor's end: what one process has said so far.

    Attributes:
        last_beat: monotonic seconds of the last sign of life, its start at first.
        has_begun: whether it has given one.
        ready: whether it serves.
        has_progressed: whether something was done for good.
        error: what it said before failing, or empty.
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
        """Take in whatever has arrived by `now`."""
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
                self._take(line)

    def close(self) -> None:
        """Close the pipe."""
        os.close(self._descriptor)

    def _take(self, line: bytes) -> None:
        if line == _READY.strip():
            self.ready = True
        elif line == _PROGRESS.strip():
            self.has_progressed = True
        elif line.startswith(_ERROR):
            self.error = str(json.loads(line[len(_ERROR) :]))
