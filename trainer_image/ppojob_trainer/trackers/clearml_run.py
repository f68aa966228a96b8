"""A job's run in ClearML: on its server where there are credentials, else in the run folder."""

import os
import shlex
import shutil
from pathlib import Path
from typing import Any, Final

from ppojob_api.run_layout import CLEARML_FOLDER, CLEARML_IMPORT
from ppojob_trainer.trackers.messages import Phase, TrackedRun

_PATCHES: Final = (
    *("matplotlib", "tensorflow", "tensorboard", "pytorch", "xgboost", "scikit", "fastai"),
    *("lightgbm", "hydra", "detect_repository", "tfdefines", "joblib", "megengine", "catboost"),
    *("gradio", "jsonargparse"),
)
"""What ClearML changes or reads by itself: all off, since a pod without a model has none of it."""


class ClearmlRun:
    """One task, resumed at every start by a tag with the id.

    Settings are ClearML's environment variables and clearml.conf, so those of the user win;
    `CLEARML_PROJECT` is our own. The server reports the last step. The folder of an offline run, of
    this run alone also in a `CLEARML_CACHE_DIR`, is written again with all steps at every start.
    """

    def __init__(self, run: TrackedRun) -> None:
        tag, shared = f"ppojob-{run.id}", os.environ.get("CLEARML_CACHE_DIR")
        own = Path(shared, tag) if shared else Path(run.folder, CLEARML_FOLDER)
        os.environ["CLEARML_CACHE_DIR"] = str(own)
        import clearml
        from clearml.backend_api.session.defs import ENV_ACCESS_KEY, ENV_AUTH_TOKEN
        from clearml.config import config_obj, get_offline_dir

        has_key = ENV_ACCESS_KEY.get() or config_obj.get("api.credentials.access_key", None)
        if not (has_key or ENV_AUTH_TOKEN.get()):
            clearml.Task.set_offline(True)
        is_offline = clearml.Task.is_offline()
        project = os.environ.get("CLEARML_PROJECT", "ppojob")
        found: Any = None
        if is_offline:
            shutil.rmtree(get_offline_dir(), ignore_errors=True)
        else:
            found = next(iter(clearml.Task.get_tasks(project_name=project, tags=[tag])), None)
        self._task: Any = clearml.Task.init(
            project,
            run.name,
            tags=[tag],
            reuse_last_task_id=False if found is None else found.id,
            continue_last_task=False if found is None else 0,  # steps are those of the job
            output_uri=False,
            auto_connect_arg_parser=False,
            auto_connect_frameworks=dict.fromkeys(_PATCHES, False),
            auto_connect_streams=False,
            auto_resource_monitoring=False,
        )
        self._task.set_configuration_object("job", config_dict=run.config)
        is_same = found is not None and self._task.id == found.id
        has_steps = is_same and found.get_last_scalar_metrics()
        # The last step may have been sent in part; sent again it replaces what is there.
        self.last_step = int(found.get_last_iteration()) - 1 if has_steps else -1
        if is_offline:
            session = shlex.quote(str(self._task.get_offline_mode_folder()))
            self.location: str = f"offline; once the job has ended: {CLEARML_IMPORT} {session}"
        else:
            self.location = self._task.get_output_log_web_page()

    def write(self, step: int, unix_seconds: float, metrics: dict[str, float]) -> None:
        """Log a step: of `actor/loss` the plot is `actor`, and its line `loss`."""
        logger = self._task.get_logger()
        for name, value in metrics.items():
            plot, _, line = name.partition("/")
            logger.report_scalar(plot, line or plot, value, step)

    def close(self, phase: Phase) -> None:
        """Wait until the server, or the folder of an offline run, has all steps."""
        if phase == "Failed":
            self._task.mark_failed(status_message="the job failed")
        elif phase == "Interrupted":
            self._task.mark_stopped(status_message="the job was interrupted")
        self._task.close()
