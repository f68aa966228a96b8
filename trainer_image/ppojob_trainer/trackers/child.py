"""Tracker process, the only one that imports the tracker's library.

It gives the tracker every step of metrics.jsonl once, whatever became of the last process. The
tracker itself says what it holds when its run is opened: no mark is kept here. So a process that
was killed is only started again, steps that a rewind repeats are not above what the tracker has
and are not sent, and a tracker that was away for a day is only behind.
"""

import os
import re
import sys
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from ppojob_api.problem import printable
from ppojob_api.run_layout import METRICS_FILE, SUMMARY_FILE
from ppojob_trainer.children import guardian
from ppojob_trainer.metrics.line_follower import LineFollower
from ppojob_trainer.trackers.messages import Answer, Finish, Open, Phase, Request, TrackedRun, keep

if TYPE_CHECKING:
    from ppojob_trainer.trackers.mlflow_run import MlflowRun
    from ppojob_trainer.trackers.swanlab_run import SwanlabRun
    from ppojob_trainer.trackers.trackio_run import TrackioRun
    from ppojob_trainer.trackers.wandb_run import WandbRun

_STEPS_AT_A_TIME: Final = 50
_NICENESS: Final = 10
_LINE_CHARACTERS: Final = 400
_SECRET_NAMES: Final = re.compile(r"KEY|TOKEN|PASSWORD|SECRET")
_USER_IN_URL: Final = re.compile(r"(?<=://)[^\s/@]+@")


class Follower:
    """One run, open in its tracker: the last step that it was given, -1 for none, and its place."""

    def __init__(self, run: TrackedRun) -> None:
        self._open_run = open_run(run)
        self.last_step = self._open_run.last_step
        self.told = self._open_run.told
        self._folder = Path(run.folder)
        self._lines = LineFollower(self._folder / METRICS_FILE)
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


def open_run(run: TrackedRun) -> "WandbRun | MlflowRun | SwanlabRun | TrackioRun":
    """Import the tracker's library, and begin the run in it or go on with it.

    A run has `last_step`, that the tracker holds (-1 for none), `told`, where people find it,
    `write` for a step above the last one, and `close`, which ends it once the tracker has all.
    """
    if run.tracker == "wandb":
        from ppojob_trainer.trackers.wandb_run import WandbRun

        return WandbRun(run)
    if run.tracker == "swanlab":
        from ppojob_trainer.trackers.swanlab_run import SwanlabRun

        return SwanlabRun(run)
    if run.tracker == "trackio":
        from ppojob_trainer.trackers.trackio_run import TrackioRun

        return TrackioRun(run)
    from ppojob_trainer.trackers.mlflow_run import MlflowRun

    return MlflowRun(run)


class _Session:
    """Answers requests: the first opens a run, the others are about it."""

    def __init__(self) -> None:
        self._decoder = msgspec.msgpack.Decoder(Request)

    def answer(self, body: bytes) -> bytes:
        """Do what is asked; what the library raises is told in a line."""
        try:
            done = self._done(self._decoder.decode(body))
        except (Exception, SystemExit) as error:
            text = _without_secrets(f"{type(error).__name__}: {error}")
            done = Answer(failure=printable(" ".join(text.split()), _LINE_CHARACTERS))
        return msgspec.msgpack.encode(done)

    def _done(self, request: Request) -> Answer:
        is_behind = False
        if isinstance(request, Open):
            keep(request.run)
            self._follower = Follower(request.run)
        elif isinstance(request, Finish):
            self._follower.finish()
        else:
            is_behind = self._follower.send()
        told = _without_secrets(self._follower.told)
        return Answer(self._follower.last_step, is_behind=is_behind, told=told)


def _without_secrets(text: str) -> str:
    """A text without keys, tokens and passwords of the environment, and without those in URLs."""
    for name, value in os.environ.items():
        if value and _SECRET_NAMES.search(name):
            text = text.replace(value, "***")
    return _USER_IN_URL.sub("***@", text)


def serve(requests: int, answers: int) -> None:
    """Answer requests until the parent closes its end."""
    os.nice(_NICENESS)  # it shares the cores with the training
    # Libraries chat, and may show a key. What went wrong is in the answers.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.dup2(nowhere, sys.stderr.fileno())
    guardian.answer_requests(requests, answers, _Session().answer)


if __name__ == "__main__":
    sys.exit(guardian.run(serve, sys.argv[1:]))
