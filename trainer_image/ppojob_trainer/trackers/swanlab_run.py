"""A job's run in SwanLab: on its server where there is a key, else in the run folder."""

import os
import shlex
import shutil
from pathlib import Path
from typing import Any, Final

from ppojob_api.run_layout import SWANLAB_FOLDER
from ppojob_trainer.trackers.messages import Phase, TrackedRun

_STATE: Final = {"Succeeded": "success", "Interrupted": "aborted", "Failed": "crashed"}


class SwanlabRun:
    """One run, resumed at every start by its id.

    Settings are SwanLab's environment variables (`SWANLAB_PROJ_NAME`, `SWANLAB_WORKSPACE`,
    `SWANLAB_MODE` and so on), so those of the user win. The server reports the last step. The
    folder of an offline run is written again with all steps at every start.
    """

    def __init__(self, run: TrackedRun) -> None:
        settings = {
            "SWANLAB_PROJ_NAME": "ppojob",
            "SWANLAB_EXP_NAME": run.name,
            "SWANLAB_RUN_ID": run.id,
            "SWANLAB_RESUME": "allow",
            "SWANLAB_LOGDIR": str(Path(run.folder) / SWANLAB_FOLDER),
            "SWANLAB_INTERACTIVE": "false",
            "SWANLAB_TERMINAL_PROXY_TYPE": "none",
            "SWANLAB_PROBE_GIT": "false",
            "SWANLAB_PROBE_MONITOR": "false",  # it would monitor a pod without a model
        }
        for name, value in settings.items():
            os.environ.setdefault(name, value)
        import swanlab

        chosen: Any = swanlab.Settings()
        mode: str = chosen.mode
        if "mode" not in chosen.model_fields_set and chosen.api_key is None:
            mode = "offline"
        if mode == "offline":
            # A fixed name: an earlier folder is removed.
            name = os.environ["SWANLAB_RUN_DIR"] = f"offline-{chosen.run.id}"
            shutil.rmtree(chosen.log_dir / name, ignore_errors=True)
        self._run: Any = swanlab.init(mode=mode, config=run.config)
        self.last_step = int(self._run._ctx._global_step)
        self.location: str = self._run.url if mode == "online" else mode
        if mode == "offline":
            folder = shlex.quote(str(self._run.dir))
            self.location += f"; once the job has ended: swanlab sync {folder}"

    def write(self, step: int, unix_seconds: float, metrics: dict[str, float]) -> None:
        """Log a step."""
        self._run.log(metrics, step=step)

    def close(self, phase: Phase) -> None:
        """End the run with the phase of the job, and wait until the server has all steps."""
        self._run.finish(_STATE[phase], error="the job failed" if phase == "Failed" else None)
