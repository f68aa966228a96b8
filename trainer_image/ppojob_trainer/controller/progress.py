"""Where the job stands, for whoever watches: `status.json` in the run folder.

It is what `status.training` of the resource is on a cluster: small, replaced as a whole, never
read back by the controller, and worth no fsync.
"""

import contextlib
import os
import time
from pathlib import Path

import msgspec

STATUS_FILE = "status.json"


class TrainingStatus(msgspec.Struct, frozen=True):
    """A moment of a job.

    Attributes:
        phase: `Starting`, `Training`, `Recovering`, `Finishing`, `Succeeded`, `Failed` or
            `Interrupted`.
        step: step under way, 0 before the first.
        total_steps: steps of the whole job; 0 while not known.
        stage: what is being done, such as `gen`, or empty.
        since: unix seconds since when.
        message: one line for a person, or empty.
        restarts: how often a role was started again.
    """

    phase: str
    step: int = 0
    total_steps: int = 0
    stage: str = ""
    since: float = 0.0
    message: str = ""
    restarts: int = 0


class Progress:
    """Keeps the file up to date.

    Args:
        folder: the run folder.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / STATUS_FILE
        self._aside = folder / f".{STATUS_FILE}.aside"
        self.status = TrainingStatus("Starting", since=time.time())

    def report(self, **changes: object) -> None:
        """Change some fields and publish; a disk that refuses is no reason to stop training."""
        self.status = msgspec.structs.replace(self.status, since=time.time(), **changes)
        with contextlib.suppress(OSError):
            self._aside.write_bytes(msgspec.json.encode(self.status))
            os.replace(self._aside, self._path)
