"""Trackers whose library is not installed are named before anything starts."""

from pathlib import Path

import pytest
import tiny_jobs

from ppojob_api.run_config import resolve
from ppojob_api.v1alpha1.job import PPOJob
from ppojob_cli.machine_checks import check_trackers
from ppojob_trainer.trackers import libraries


def test_the_line() -> None:
    manifest = tiny_jobs.make_manifest(Path("/made"), loggers=["console", "wandb", "mlflow"])
    config = resolve(PPOJob.model_validate(manifest))
    (problem,) = check_trackers(config, {"wandb": "wandb"})
    assert str(problem) == (
        'spec.loggers[1]: got "wandb": the package wandb is not installed here; '
        "pip install '.[wandb]' in a clone of PPOJob, or a job without this logger"
    )
    assert list(check_trackers(config, {})) == []
    assert len(list(check_trackers(config, {"wandb": "wandb", "mlflow": "sqlalchemy"}))) == 2


def test_a_folder_of_runs_is_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As wandb leaves one behind, where the command line may be started again."""
    (tmp_path / "ppojob_no_library").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(libraries.LIBRARIES, "of a folder", ("ppojob_no_library",))
    assert libraries.missing_modules()["of a folder"] == "ppojob_no_library"
