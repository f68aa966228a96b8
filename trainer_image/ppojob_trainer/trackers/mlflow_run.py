"""A job's run in MLflow: on the server of its environment variables, else in the run folder."""

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ppojob_api.run_layout import MLFLOW_FILE, MLFLOW_FOLDER
from ppojob_trainer.trackers.messages import Phase, TrackedRun, flat

STEP_METRIC: Final = "step"
"""Logged last of each step: its newest value is the last complete step."""
RUN_TAG: Final = "ppojob.run"

_METRICS_PER_REQUEST: Final = 1000
_PARAMS_PER_REQUEST: Final = 100
_PARAM_CHARACTERS: Final = 6000
_STATUS: Final = {"Succeeded": "FINISHED", "Interrupted": "KILLED", "Failed": "FAILED"}


class MlflowRun:
    """One run, found at every start by a tag with its id."""

    def __init__(self, run: TrackedRun) -> None:
        from mlflow import MlflowClient, entities

        self._entities: Any = entities
        uri, artifacts = os.environ.get("MLFLOW_TRACKING_URI"), None
        if not uri:
            folder = Path(run.folder) / MLFLOW_FOLDER
            uri, artifacts = f"sqlite:///{_create_store(folder)}", folder.as_uri()
        self._client: Any = MlflowClient(uri)
        experiment = self._experiment(artifacts)
        found = self._client.search_runs([experiment], f"tags.`{RUN_TAG}` = '{run.id}'")
        tags = {RUN_TAG: run.id}
        own = (
            found[0] if found else self._client.create_run(experiment, run_name=run.name, tags=tags)
        )
        self._id: str = own.info.run_id
        if own.info.status != "RUNNING":
            self._client.update_run(self._id, status="RUNNING")
        self._log_params(run.config, own.data.params)
        self.last_step = int(own.data.metrics.get(STEP_METRIC, -1))
        place = f"mlflow ui --backend-store-uri {shlex.quote(uri)}" if artifacts else uri
        self.location = f"run {self._id}, experiment {experiment}: {place}"

    def write(self, step: int, unix_seconds: float, metrics: dict[str, float]) -> None:
        """Log a step."""
        values = {metric_name(name): value for name, value in metrics.items()}
        milliseconds = round(unix_seconds * 1000)
        points = [
            self._entities.Metric(name, float(value), milliseconds, step)
            for name, value in {**values, STEP_METRIC: step}.items()
        ]
        for part in _parts(points, _METRICS_PER_REQUEST):
            self._client.log_batch(self._id, metrics=part)

    def close(self, phase: Phase) -> None:
        """End the run with the phase of the job."""
        self._client.set_terminated(self._id, _STATUS[phase])

    def _experiment(self, artifacts: str | None) -> str:
        """Return the id of the experiment of MLflow's variables; it is created if missing."""
        if number := os.environ.get("MLFLOW_EXPERIMENT_ID"):
            return number
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "ppojob")
        found = self._client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        return str(self._client.create_experiment(name, artifact_location=artifacts))

    def _log_params(self, config: dict[str, Any], known: dict[str, str]) -> None:
        """Log the parameters that the run lacks; a logged one cannot be changed."""
        params = [
            self._entities.Param(name, value[:_PARAM_CHARACTERS])
            for name, value in flat(config).items()
            if name not in known
        ]
        for part in _parts(params, _PARAMS_PER_REQUEST):
            self._client.log_batch(self._id, params=part)


def _create_store(folder: Path) -> Path:
    """Create a run's own store; renamed when complete, as MLflow cannot open a partial one."""
    from mlflow import MlflowClient

    store = folder / MLFLOW_FILE
    if not store.exists():
        folder.mkdir(exist_ok=True)
        new = store.with_suffix(".new")
        new.unlink(missing_ok=True)
        MlflowClient(f"sqlite:///{new}").search_experiments()
        new.replace(store)
    return store


def metric_name(name: str) -> str:
    """Return a metric's name in MLflow: `mean@8` is `mean_at_8`, as in verl."""
    return re.sub(r"[^\w\-. :/]", "_", name.replace("@", "_at_"))


def _parts(items: list[Any], size: int) -> Iterator[list[Any]]:
    for begin in range(0, len(items), size):
        yield items[begin : begin + size]
