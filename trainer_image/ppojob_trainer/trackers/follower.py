"""Gives a tracker every step of metrics.jsonl once, whatever became of the last process.

What the tracker holds already it says itself, when its run is opened: no mark is kept here. So a
process that was killed is only started again, steps that a rewind brings once more are not above
what the tracker has, and are not sent, and a tracker that was away for a day is behind, no more.
"""

from collections import deque
from pathlib import Path
from typing import Final, Protocol

import msgspec

from ppojob_api.run_layout import METRICS_FILE, SUMMARY_FILE
from ppojob_trainer.metrics.new_lines import NewLines
from ppojob_trainer.trackers.messages import Phase, TrackedRun

_STEPS_AT_A_TIME: Final = 50


class OpenRun(Protocol):
    """A job's run in a tracker."""

    last_step: int
    """That the tracker holds when the run is opened; -1 for none."""

    told: str
    """Where people find it."""

    def write(self, step: int, unix_seconds: float, metrics: dict[str, float]) -> None:
        """Take a step; steps come in ascending order, and above ``last_step``."""

    def close(self, phase: Phase) -> None:
        """End the run, once the tracker has all of it."""


class Follower:
    """One run, open in its tracker.

    Attributes:
        last_step: that the tracker was given; -1 for none.
        told: where people find the run.
    """

    def __init__(self, run: TrackedRun) -> None:
        self._open_run = open_run(run)
        self.last_step = self._open_run.last_step
        self.told = self._open_run.told
        self._folder = Path(run.folder)
        self._lines = NewLines(self._folder / METRICS_FILE)
        self._waiting = deque[bytes]()
        self._decoder = msgspec.json.Decoder(dict[str, float | None])

    def send(self) -> bool:
        """Give the tracker some steps; answers whether there are more."""
        self._waiting += self._lines.read()
        for _ in range(min(_STEPS_AT_A_TIME, len(self._waiting))):
            values = self._decoder.decode(self._waiting.popleft())
            metrics = {name: value for name, value in values.items() if value is not None}
            step, unix_seconds = int(metrics.pop("step")), metrics.pop("time")
            if step > self.last_step:
                self._open_run.write(step, unix_seconds, metrics)
                self.last_step = step
        return bool(self._waiting)

    def finish(self) -> None:
        """End the run as the job ended: a summary says how, and one that failed has none."""
        try:
            summary = msgspec.json.decode((self._folder / SUMMARY_FILE).read_bytes(), type=_Summary)
        except FileNotFoundError:
            summary = _Summary("Failed")
        self._open_run.close(summary.phase)


class _Summary(msgspec.Struct):
    phase: Phase


def open_run(run: TrackedRun) -> OpenRun:
    """Import the tracker's library, and begin the run in it or go on with it."""
    if run.tracker == "wandb":
        from ppojob_trainer.trackers.wandb_run import WandbRun

        return WandbRun(run)
    from ppojob_trainer.trackers.mlflow_run import MlflowRun

    return MlflowRun(run)
