"""A job's run in MLflow: on the server that its variables name, else in the run folder."""

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ppojob_api.run_layout import MLFLOW_FILE, MLFLOW_FOLDER
from ppojob_trainer.trackers.messages import Phase, TrackedRun, flat

STEP_METRIC: Final = "step"
"""Of each step the last that is sent: how far a run is, is said by its newest value."""
RUN_TAG: Final = "ppojob.run"

_METRICS_A_REQUEST: Final = 1000
_PARAMS_A_REQUEST: Final = 100
_PARAM_CHARACTERS: Final = 6000
_STATUS: Final = {"Succeeded": "FINISHED", "Interrupted": "KILLED", "Failed": "FAILED"}


class MlflowRun:
    """One run, found again at every start by a tag with its id."""

    def __init__(self, run: TrackedRun) -> None:
        from mlflow import MlflowClient, entities

        self._entities: Any = entities
        uri, artifacts = os.environ.get("MLFLOW_TRACKING_URI"), None
        if not uri:
            folder = Path(run.folder) / MLFLOW_FOLDER
            uri, artifacts = f"sqlite:///{_store_in(folder)}", folder.as_uri()
        self._client: Any = MlflowClient(uri)
        experiment = self._experiment(artifacts)
        found = self._client.search_runs([experiment], f"tags.`{RUN_TAG}` = '{run.id}'")
        own = found[0] if found else self._created(experiment, run)
        self._id: str = own.info.run_id
        if own.info.status != "RUNNING":
            self._client.update_run(self._id, status="RUNNING")
        self._send_params(run.config, own.data.params)
        self.last_step = int(own.data.metrics.get(STEP_METRIC, -1))
        place = f"mlflow ui --backend-store-uri {shlex.quote(uri)}" if artifacts else uri
        self.told = f"run {self._id}, experiment {experiment}: {place}"

    def write(self, step: int, unix_seconds: float, metrics: dict[str, float]) -> None:
        """Log a step."""
        values = {
            **{metric_name(name): value for name, value in metrics.items()},
            STEP_METRIC: step,
        }
        milliseconds = round(unix_seconds * 1000)
        points = [
            self._entities.Metric(name, float(value), milliseconds, step)
            for name, value in values.items()
        ]
        for part in _parts(points, _METRICS_A_REQUEST):
            self._client.log_batch(self._id, metrics=part)

    def close(self, phase: Phase) -> None:
        """Say how the run ended."""
        self._client.set_terminated(self._id, _STATUS[phase])

    def _experiment(self, artifacts: str | None) -> str:
        """The id of the experiment that MLflow's variables name; made where it is absent."""
        if number := os.environ.get("MLFLOW_EXPERIMENT_ID"):
            return number
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "ppojob")
        found = self._client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        return str(self._client.create_experiment(name, artifact_location=artifacts))

    def _created(self, experiment: str, run: TrackedRun) -> Any:
        return self._client.create_run(experiment, run_name=run.name, tags={RUN_TAG: run.id})

    def _send_params(self, config: dict[str, Any], known: dict[str, str]) -> None:
        """Send what the run has not: a parameter cannot be changed, as of a job that goes on."""
        params = [
            self._entities.Param(name, value[:_PARAM_CHARACTERS])
            for name, value in flat(config).items()
            if name not in known
        ]
        for part in _parts(params, _PARAMS_A_REQUEST):
            self._client.log_batch(self._id, params=part)


def _store_in(folder: Path) -> Path:
    """A store of a run's own, made aside: one that a kill left half made could never be opened."""
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
    """A metric's name as MLflow takes it: `mean@8` is `mean_at_8`, as verl has it."""
    return re.sub(r"[^\w\-. :/]", "_", name.replace("@", "_at_"))


def _parts(items: list[Any], size: int) -> Iterator[list[Any]]:
    for begin in range(0, len(items), size):
        yield items[begin : begin + size]
