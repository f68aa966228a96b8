"""A tracker as a sink: a thread has its process follow metrics.jsonl, and nobody waits for it.

Whatever a tracker does, it cannot slow, stop or fail the job: a step is told by setting an event,
and at the end of the job the tracker has some seconds to finish. What goes wrong is a line in the
log, and the process is started again.
"""

import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from ppojob_api.run_layout import METRICS_FILE
from ppojob_trainer import durable
from ppojob_trainer.children.process import BoundedProcess, ChildDied, ChildTimeout
from ppojob_trainer.trackers import libraries
from ppojob_trainer.trackers.messages import Answer, Finish, Open, Request, Send, TrackedRun

_log = logging.getLogger(__name__)
_MODULE: Final = "ppojob_trainer.trackers.child"


class _Failed(Exception):  # noqa: N818  it says what happened
    """The library raised; the text goes on from the tracker's name."""


class TrackerSink:
    """Has a tracker follow a run; itself a sink, whose steps are read from metrics.jsonl.

    The process is started at once, since libraries take seconds to import.

    Args:
        run: the job.
        answer_seconds: for opening a run, or for some steps, before its process is replaced.
        pause_seconds: from the end of a process to the start of the next one.
        end_seconds: for all that it has not sent yet, once the job has ended.
    """

    def __init__(
        self,
        run: TrackedRun,
        *,
        answer_seconds: float = 300.0,
        pause_seconds: float = 60.0,
        end_seconds: float = 30.0,
    ) -> None:
        self._run = run
        self._answer_seconds = answer_seconds
        self._pause_seconds = pause_seconds
        self._end_seconds = end_seconds
        self._changed = threading.Event()
        self._closing = threading.Event()
        self._child: BoundedProcess | None = None
        self.last_step = -1  # that the tracker was given
        self._is_finished = False
        self._is_over = False
        self._problem = ""
        self._thread = threading.Thread(target=self._follow, name=run.tracker, daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        """Process id of the tracker's process, or of the last one; None before the first."""
        return None if self._child is None else self._child.pid

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Tell the tracker's process that there is a step; it reads it from metrics.jsonl."""
        self._changed.set()

    def cut_after(self, step: int) -> None:
        """Does nothing: no tracker takes a step back, and a repeated step is the same step."""

    def close(self) -> None:
        """Give the tracker some seconds to finish, then end its process."""
        self._closing.set()
        self._changed.set()
        self._thread.join(self._end_seconds)
        self._is_over = True
        while self._thread.is_alive():
            if self._child is not None:
                self._child.abort()
            self._thread.join(0.1)
        if not self._is_finished:
            _log.warning("%s: %s", self._run.tracker, self._unfinished())

    def _follow(self) -> None:
        """Serve the run by one process after another, until it is finished or given up."""
        is_last = False
        while not (self._is_finished or is_last or self._is_over):
            is_last = self._closing.is_set()
            try:
                self._serve()
            except (_Failed, ChildDied, ChildTimeout, OSError) as problem:
                self._tell(problem)
                self._closing.wait(self._pause_seconds)

    def _serve(self) -> None:
        tracker = self._run.tracker
        variables = libraries.variables(tracker)
        self._child = BoundedProcess(_MODULE, memory_bytes=None, log=_log, variables=variables)
        try:
            _log.info("%s: %s", tracker, self._ask(Open(self._run)).told)
            self._problem = ""
            while not self._is_finished:
                self._changed.clear()
                is_closing = self._closing.is_set()
                while self._ask(Send()).is_behind:
                    pass
                if is_closing:
                    self._ask(Finish())
                    self._is_finished = True
                else:
                    self._changed.wait()
        finally:
            self._child.kill()

    def _ask(self, request: Request) -> Answer:
        assert self._child is not None
        body = self._child.call(msgspec.msgpack.encode(request), self._answer_seconds)
        answer = msgspec.msgpack.decode(body, type=Answer)
        if answer.failure:
            raise _Failed(answer.failure)
        self.last_step = answer.last_step
        return answer

    def _tell(self, problem: Exception) -> None:
        """Log what went wrong, once: a server that is away is tried again and again."""
        if self._is_over:
            return  # `close` ended it, and logs how far it got
        text = str(problem) or f"no answer within {self._answer_seconds:g} s"
        if text != self._problem:
            _log.warning(
                "%s: %s; the job goes on without it, and metrics.jsonl has every step; "
                "tried again every %g s",
                self._run.tracker,
                text,
                self._pause_seconds,
            )
        self._problem = text

    def _unfinished(self) -> str:
        lines = durable.read_lines(Path(self._run.folder) / METRICS_FILE)
        steps = [msgspec.json.decode(line)["step"] for line in lines]
        unsent = sum(step > self.last_step for step in steps)
        return (
            f"not finished: it took {len(steps) - unsent} of {len(steps)} steps; all are in "
            "metrics.jsonl, and the others are sent when the job goes on, or by "
            f"python -m ppojob_trainer.trackers {self._run.tracker} {self._run.folder}"
        )
