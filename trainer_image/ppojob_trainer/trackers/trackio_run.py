"""A job's run in Trackio: where its variables say, a server or a Space, else in the run folder."""

import os
from pathlib import Path
from typing import Any

from ppojob_api.run_layout import TRACKIO_FOLDER
from ppojob_trainer.trackers.messages import Phase, TrackedRun


class TrackioRun:
    """One run, gone on with at every start by its name, which the id of the run makes unique.

    Trackio writes from a thread of its own and tells no failure, so that what it holds is looked at
    when the run ends.
    """

    def __init__(self, run: TrackedRun) -> None:
        folder = os.environ.setdefault("TRACKIO_DIR", str(Path(run.folder) / TRACKIO_FOLDER))
        import trackio

        self._trackio: Any = trackio
        self._project = os.environ.get("TRACKIO_PROJECT", "ppojob")
        self._name = f"{run.name}-{run.id}"
        self._config = run.config
        self._run = self._opened()
        self.last_step = self._held()
        remote = os.environ.get("TRACKIO_SPACE_ID") or os.environ.get("TRACKIO_SERVER_URL")
        place = remote or f"TRACKIO_DIR={folder} trackio show --project {self._project}"
        self.told = f"run {self._name}, project {self._project}: {place}"

    def write(self, step: int, unix_seconds: float, metrics: dict[str, float]) -> None:
        """Log a step."""
        self._run.log(metrics, step=step)
        self.last_step = step

    def close(self, phase: Phase) -> None:
        """Wait until all is written, and look whether it is."""
        self._run.finish()
        self._run = self._opened()
        if (held := self._held()) < self.last_step:
            raise OSError(f"it holds steps up to {held}, and was given {self.last_step}")

    def _opened(self) -> Any:
        return self._trackio.init(
            self._project,
            name=self._name,
            config=self._config,
            resume="allow",
            embed=False,
            # Of a pod without a model.
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def _held(self) -> int:
        """The last step that it had when it was opened."""
        return int(self._run._next_step) - 1
