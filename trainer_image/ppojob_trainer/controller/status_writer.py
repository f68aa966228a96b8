"""Tells the cluster how far the job is, from a thread that is never in the way of the loop.

What is told is always the newest state: one that was not sent in time is dropped. At most six
states a minute, but a change of stage or controller goes out at once,
and so does the last state, before the process ends.
"""

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ppojob_api.v1alpha1.status import TrainingStatus
from ppojob_trainer.controller.job_resource import DisownedError, NotWrittenError, RefusedError

_log = logging.getLogger(__name__)
FINAL_SECONDS: Final = 20.0
"""For so long the end of the controller may be held up by its last state."""


@dataclass(frozen=True)
class Pace:
    """How often the API server is asked.

    Attributes:
        interval_seconds: from one state to the next one of the same stage.
        first_pause_seconds: after a failure; doubled by each that follows.
        longest_pause_seconds: at most.
        final_pause_seconds: after a failure, once the controller wants to end.
    """

    interval_seconds: float = 10.0
    first_pause_seconds: float = 1.0
    longest_pause_seconds: float = 60.0
    final_pause_seconds: float = 0.5

    def pause(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row."""
        doubled = self.first_pause_seconds * 2.0 ** min(failures - 1, 16)
        return min(doubled, self.longest_pause_seconds) * random.uniform(0.5, 1.0)


class StatusWriter:
    """Sends states; the thread begins when the writer is made.

    `write` delivers a state. It raises NotWrittenError, or DisownedError when nothing more of this
    controller is wanted.
    """

    def __init__(self, write: Callable[[TrainingStatus], None], pace: Pace | None = None) -> None:
        self._write = write
        self._pace = pace or Pace()
        self._changed = threading.Condition()
        self._newest: TrainingStatus | None = None
        self._sent: TrainingStatus | None = None
        self._tried_at = float("-inf")
        self._pause_until = float("-inf")
        self._asked_until = float("-inf")
        self._failures = 0
        self._is_disowned = False
        self._deadline: float | None = None
        self._thread = threading.Thread(target=self._run, name="status-writer", daemon=True)
        self._thread.start()

    def offer(self, state: TrainingStatus) -> None:
        """Have a state sent, unless a newer one comes first; returns at once."""
        with self._changed:
            self._newest = state
            self._changed.notify()

    def close(self, seconds: float = FINAL_SECONDS) -> None:
        """Send the last state, and end.

        Returns when that is done, when it is refused (by a cluster, say, that has let go of the
        job and its accounts), or after so many seconds.
        """
        with self._changed:
            self._deadline = time.monotonic() + seconds
            self._pause_until = float("-inf")
            self._changed.notify()
        self._thread.join(seconds)
        if self._newest != self._sent and not self._is_disowned:
            _log.warning("status.training: the last state was not written")

    def _run(self) -> None:
        try:
            while (state := self._take()) is not None:
                self._send(state)
        except DisownedError as problem:
            self._is_disowned = True
            _log.warning("status.training is not written any more: %s", problem)

    def _take(self) -> TrainingStatus | None:
        """Wait until the newest state is due; None where there is nothing left to send, or time."""
        with self._changed:
            while True:
                now, is_new = time.monotonic(), self._newest != self._sent
                if self._deadline is not None and (not is_new or now >= self._deadline):
                    return None
                left = self._due_at() - now if is_new else threading.TIMEOUT_MAX
                if left <= 0.0:
                    return self._newest
                end = threading.TIMEOUT_MAX if self._deadline is None else self._deadline - now
                self._changed.wait(min(left, end, threading.TIMEOUT_MAX))

    def _due_at(self) -> float:
        """When the newest state may go out, in monotonic seconds."""
        if self._deadline is not None:
            return max(self._asked_until, self._pause_until)
        rest = float("-inf") if self._is_change() else self._tried_at + self._pace.interval_seconds
        return max(self._asked_until, self._pause_until, rest)

    def _is_change(self) -> bool:
        """Whether the newest state is of another stage or controller than the one sent last."""
        if self._newest is None or self._sent is None:
            return True
        newest, sent = self._newest, self._sent
        return (newest.epoch, newest.stage) != (sent.epoch, sent.stage)

    def _send(self, state: TrainingStatus) -> None:
        self._tried_at = time.monotonic()
        try:
            self._write(state)
        except NotWrittenError as problem:
            self._fail(problem)
            return
        if self._failures:
            _log.info("status.training is written again")
        self._failures = 0
        self._sent = state

    def _fail(self, problem: NotWrittenError) -> None:
        if not self._failures:
            _log.warning("status.training is not written, the training goes on: %s", problem)
        self._failures += 1
        now = time.monotonic()
        with self._changed:
            pause = self._pace.pause(self._failures)
            if self._deadline is not None:
                pause = min(pause, self._pace.final_pause_seconds)
                if isinstance(problem, RefusedError):
                    self._deadline = now
            self._pause_until = now + pause
            self._asked_until = now + problem.retry_after
