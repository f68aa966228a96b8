"""Metric sink that uploads metrics.jsonl to a tracker, by a thread and a process.

A tracker cannot slow, stop or fail the job: a step only sets an event, and at the end of the job
the tracker has some seconds to finish. Errors are logged, and the process is started again.
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
from ppojob_trainer.metrics.sinks import Sink
from ppojob_trainer.trackers import libraries
from ppojob_trainer.trackers.messages import TrackedRun, Upload, Uploaded

_log = logging.getLogger(__name__)
_MODULE: Final = "ppojob_trainer.trackers.child"


class _UploadFailed(Exception):  # noqa: N818  the name in messages
    """The tracker's library raised; the text continues the tracker's name."""


class TrackerSink(Sink):
    """Uploads the steps of a run.

    The process is started at once, since libraries take seconds to import.

    Args:
        answer_seconds: timeout of an upload, after which its process is replaced.
        pause_seconds: from the end of a process to the start of the next one.
        end_seconds: for the remaining steps, once the job has ended.
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
        self.last_step = -1
        self._is_finished = False
        self._is_aborted = False
        self._problem = ""
        self._thread = threading.Thread(target=self._run_processes, name=run.tracker, daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        """Process id of the tracker's last process; None before the first."""
        return None if self._child is None else self._child.pid

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Wake the thread; the tracker's process reads the step from metrics.jsonl."""
        self._changed.set()

    def close(self) -> None:
        """Wait some seconds for the remaining steps, then end the process."""
        self._closing.set()
        self._changed.set()
        self._thread.join(self._end_seconds)
        self._is_aborted = True
        while self._thread.is_alive():
            if self._child is not None:
                self._child.abort()
            self._thread.join(0.1)
        if not self._is_finished:
            _log.warning("%s: %s", self._run.tracker, self._unfinished())

    def _run_processes(self) -> None:
        """Run one process after another, until the run is finished or the sink closed."""
        is_last = False
        while not (self._is_finished or is_last or self._is_aborted):
            is_last = self._closing.is_set()
            variables = libraries.variables(self._run.tracker)
            try:
                self._child = BoundedProcess(
                    _MODULE, memory_bytes=None, log=_log, variables=variables
                )
                try:
                    self._upload(self._child)
                finally:
                    self._child.kill()
            except (_UploadFailed, ChildDied, ChildTimeout, OSError) as problem:
                self._report(problem)
                self._closing.wait(self._pause_seconds)

    def _upload(self, child: BoundedProcess) -> None:
        """Upload steps until the run is finished."""
        location = ""
        while not self._is_finished:
            self._changed.clear()
            request = msgspec.msgpack.encode(Upload(self._run, is_last := self._closing.is_set()))
            has_more = True
            while has_more:
                body = child.call(request, self._answer_seconds)
                answer = msgspec.msgpack.decode(body, type=Uploaded)
                if answer.failure:
                    raise _UploadFailed(answer.failure)
                self.last_step, has_more = answer.last_step, answer.has_more
                if location != answer.location:
                    location = answer.location
                    _log.info("%s: %s", self._run.tracker, location)
            self._problem = ""
            self._is_finished = is_last
            if not is_last:
                self._changed.wait()

    def _report(self, problem: Exception) -> None:
        """Log an error, once while it repeats."""
        if self._is_aborted:
            return  # `close` ended it, and logs its progress
        text = str(problem)
        if text != self._problem:
            _log.warning(
                "%s: %s; the job continues without it, and metrics.jsonl has every step; "
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
            f"not finished: it has {len(steps) - unsent} of {len(steps)} steps; all are in "
            "metrics.jsonl, and the others are uploaded when the job is resumed, or by "
            f"python -m ppojob_trainer.trackers {self._run.tracker} {self._run.folder}"
        )
