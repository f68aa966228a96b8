"""A job's run in Trackio: on the server or Space of its variables, else in the run folder."""

import os
from pathlib import Path
from typing import Any

from ppojob_api.run_layout import TRACKIO_FOLDER
from ppojob_trainer.trackers.messages import Phase, TrackedRun


class TrackioRun:
    """One run, resumed at every start by its name, which contains the id.

    Trackio writes in a thread and reports no errors, so `close` checks the last stored step.
    """

    def __init__(self, run: TrackedRun) -> None:
        folder = os.environ.setdefault("TRACKIO_DIR", str(Path(run.folder) / TRACKIO_FOLDER))
        import trackio

        self._trackio: Any = trackio
        self._project = os.environ.get("TRACKIO_PROJECT", "ppojob")
        self._name = f"{run.name}-{run.id}"
        self._config = run.config
        self._run = self._open()
        self.last_step = self._stored_step()
        remote = os.environ.get("TRACKIO_SPACE_ID") or os.environ.get("TRACKIO_SERVER_URL")
        place = remote or f"TRACKIO_DIR={folder} trackio show --project {self._project}"
        self.location = f"run {self._name}, project {self._project}: {place}"

    def write(self, step: int, unix_seconds: float, metrics: dict[str, float]) -> None:
        """Log a step."""
        self._run.log(metrics, step=step)
        self.last_step = step

    def close(self, phase: Phase) -> None:
        """Wait until all is written, and check that it is."""
        self._run.finish()
        self._run = self._open()
        if (stored := self._stored_step()) < self.last_step:
            raise OSError(f"it has steps up to {stored}, but {self.last_step} were sent")

    def _open(self) -> Any:
        return self._trackio.init(
            self._project,
            name=self._name,
            config=self._config,
            resume="allow",
            embed=False,
            auto_log_gpu=False,  # these would monitor a pod without a model
            auto_log_cpu=False,
        )

    def _stored_step(self) -> int:
        """Return the last step that it had when it was opened."""
        return int(self._run._next_step) - 1
