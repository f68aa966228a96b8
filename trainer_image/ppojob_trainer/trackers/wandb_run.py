"""A job's run in Weights & Biases: on its server where there is a key, else in the run folder."""

import os
import shlex
import shutil
from pathlib import Path
from typing import Any

from ppojob_api.run_layout import WANDB_FOLDER
from ppojob_trainer.trackers.messages import Phase, TrackedRun


class WandbRun:
    """One run, resumed at every start by its id.

    Settings are wandb's environment variables (`WANDB_PROJECT`, `WANDB_ENTITY`, `WANDB_RUN_GROUP`,
    `WANDB_MODE` and so on), so those of the user win. The server reports the last step. The folder
    of an offline run is written again with all steps at every start.
    """

    def __init__(self, run: TrackedRun) -> None:
        settings = {
            "WANDB_PROJECT": "ppojob",
            "WANDB_NAME": run.name,
            "WANDB_RUN_ID": run.id,
            "WANDB_DIR": run.folder,
            "WANDB_SILENT": "true",
            "WANDB_CONSOLE": "off",
            "WANDB_DISABLE_CODE": "true",
            "WANDB_DISABLE_GIT": "true",
        }
        for name, value in settings.items():
            os.environ.setdefault(name, value)
        import wandb

        self._wandb: Any = wandb
        mode: Any = os.environ.get("WANDB_MODE")
        if mode is None:
            mode = "online" if wandb.login(prompt=False, verify=False) else "offline"
        is_online = mode == "online"
        if mode == "offline":
            root = Path(os.environ["WANDB_DIR"]) / WANDB_FOLDER
            for old in root.glob(f"offline-run-*-{os.environ['WANDB_RUN_ID']}"):
                shutil.rmtree(old)
        self._run: Any = wandb.init(
            mode=mode,
            config=run.config,
            resume="allow" if is_online else None,
            allow_val_change=True,
            settings=wandb.Settings(x_disable_stats=True),  # those of a pod without a model
        )
        self.last_step = self._run.starting_step - 1
        folder = shlex.quote(str(Path(self._run.dir).parent))
        offline = f"offline; once the job has ended: wandb sync {folder}"
        self.location: str = {"online": self._run.url, "offline": offline}.get(mode, mode)

    def write(self, step: int, unix_seconds: float, metrics: dict[str, float]) -> None:
        """Log a step."""
        self._run.log({**metrics, "_timestamp": unix_seconds}, step=step, commit=True)

    def close(self, phase: Phase) -> None:
        """Wait until the server, or the file of an offline run, has all steps."""
        self._run.finish(exit_code=int(phase == "Failed"))
        # wandb's process writes the last lines of the file after that: wait until it has ended.
        self._wandb.teardown()
