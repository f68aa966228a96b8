"""Tracker process, the only one that imports the tracker's library.

It uploads every step of metrics.jsonl once. The tracker itself reports its last step when the run
is opened, so nothing is stored here: a killed process is only started again, and steps that a
rewind repeats are not uploaded twice.
"""

import importlib
import os
import re
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from ppojob_api.problem import printable
from ppojob_api.run_layout import METRICS_FILE, SUMMARY_FILE
from ppojob_trainer.children import guardian
from ppojob_trainer.metrics.line_follower import LineFollower
from ppojob_trainer.trackers.messages import Phase, TrackedRun, Upload, Uploaded, save_run

_STEPS_PER_UPLOAD: Final = 50
_NICENESS: Final = 10
_LINE_CHARACTERS: Final = 400
_SECRET_NAMES: Final = re.compile(r"KEY|TOKEN|PASSWORD|SECRET")
_USER_IN_URL: Final = re.compile(r"(?<=://)[^\s/@]+@")


class Uploader:
    """Uploads the metrics of one run.

    Attributes:
        last_step: the last step that the tracker has; -1 for none.
        location: where users find the run.
    """

    def __init__(self, run: TrackedRun) -> None:
        self._run = open_run(run)
        self.last_step: int = self._run.last_step
        self.location: str = self._run.location
        self._folder = Path(run.folder)
        self._lines = LineFollower(self._folder / METRICS_FILE)
        self._pending = deque[bytes]()
        self._decoder = msgspec.json.Decoder(dict[str, float | None])

    def upload(self) -> bool:
        """Upload some steps; return whether there are more."""
        self._pending += self._lines.read()
        for _ in range(min(_STEPS_PER_UPLOAD, len(self._pending))):
            values = self._decoder.decode(self._pending.popleft())
            metrics = {name: value for name, value in values.items() if value is not None}
            step, unix_seconds = int(metrics.pop("step")), metrics.pop("time")
            if step > self.last_step:
                self._run.write(step, unix_seconds, metrics)
                self.last_step = step
        return bool(self._pending)

    def finish(self) -> None:
        """End the run with the phase of the job's summary; a job without one has failed."""
        try:
            summary = msgspec.json.decode((self._folder / SUMMARY_FILE).read_bytes(), type=_Summary)
        except FileNotFoundError:
            summary = _Summary("Failed")
        self._run.close(summary.phase)


class _Summary(msgspec.Struct):
    phase: Phase


def open_run(run: TrackedRun) -> Any:
    """Import the tracker's library, and start or resume the run.

    A run has `last_step` and `location` (see `Uploader`), `write` logs a step, `close` ends it.
    """
    module = importlib.import_module(f"ppojob_trainer.trackers.{run.tracker}_run")
    return getattr(module, f"{run.tracker.capitalize()}Run")(run)


def _without_secrets(text: str) -> str:
    """Mask keys, tokens and passwords of the environment, and those in URLs."""
    for name, value in os.environ.items():
        if value and _SECRET_NAMES.search(name):
            text = text.replace(value, "***")
    return _USER_IN_URL.sub("***@", text)


def _start() -> Callable[[bytes], bytes]:
    os.nice(_NICENESS)  # it shares the cores with the training
    # Libraries print much, and may print a key. Failures are in the answers.
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.dup2(null, sys.stderr.fileno())
    decoder = msgspec.msgpack.Decoder(Upload)
    uploader: Uploader | None = None

    def uploaded(request: Upload) -> Uploaded:
        nonlocal uploader
        if uploader is None:
            save_run(request.run)
            uploader = Uploader(request.run)
        has_more = uploader.upload()
        if request.is_last and not has_more:
            uploader.finish()
        location = _without_secrets(uploader.location)
        return Uploaded(uploader.last_step, has_more=has_more, location=location)

    def answer(body: bytes) -> bytes:
        try:
            done = uploaded(decoder.decode(body))
        except (Exception, SystemExit) as error:
            text = _without_secrets(f"{type(error).__name__}: {error}")
            done = Uploaded(failure=printable(" ".join(text.split()), _LINE_CHARACTERS))
        return msgspec.msgpack.encode(done)

    return answer


if __name__ == "__main__":
    guardian.main(_start)
