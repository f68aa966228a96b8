"""Where the job stands, for whoever watches: a file in the run folder, and the resource of the job.

`status.json` is small, replaced as a whole, never read back by the controller, and worth no fsync.
"""

import contextlib
import logging
import os
import time
from pathlib import Path

import msgspec

from ppojob_trainer.controller.training_report import TrainingReport

STATUS_FILE = "status.json"
_log = logging.getLogger(__name__)


class TrainingStatus(msgspec.Struct, frozen=True):
    """A moment of a job.

    Attributes:
        phase: `Starting`, `Training`, `Recovering`, `Finishing`, `Succeeded`, `Failed` or
            `Interrupted`.
        total_steps: steps of the whole job; 0 while not known.
        stage: what is being done, such as `gen`, or empty.
        since: unix seconds since when.
        message: one line for a person, or empty.
        restarts: how often a role was started again.
        notices: lines that a person should see whatever comes after them.
    """

    phase: str
    step: int = 0
    total_steps: int = 0
    stage: str = ""
    since: float = 0.0
    message: str = ""
    restarts: int = 0
    notices: tuple[str, ...] = ()


class Reporter:
    """Tells of the job.

    `training` tells the job's resource; by default nobody listens.
    """

    def __init__(self, folder: Path, training: TrainingReport | None = None) -> None:
        self._path = folder / STATUS_FILE
        self._aside = folder / f".{STATUS_FILE}.aside"
        self.status = TrainingStatus("Starting", since=time.time())
        self.training = training or TrainingReport(lambda _: None)

    def report(self, **changes: object) -> None:
        """Change some fields and publish; a disk that refuses is no reason to stop training."""
        self.status = msgspec.structs.replace(self.status, since=time.time(), **changes)
        with contextlib.suppress(OSError):
            self._aside.write_bytes(msgspec.json.encode(self.status))
            os.replace(self._aside, self._path)
        self.training.change_phase(self.status.phase, self.status.total_steps)

    def notice(self, line: str) -> None:
        """Tell a line that stays: in the log, and once on the screen of whoever watches."""
        _log.warning("%s", line)
        if line not in self.status.notices:
            self.report(notices=(*self.status.notices, line))
