import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import tracker_runs
from patience import eventually
from tiers import first_in_test

from ppojob_trainer.metrics.sinks import JsonLines, Sinks
from ppojob_trainer.trackers.libraries import LIBRARIES
from ppojob_trainer.trackers.messages import TrackedRun, flat
from ppojob_trainer.trackers.mlflow_run import metric_name
from ppojob_trainer.trackers.sink import TrackerSink

SHORT = ("wandb", "trackio")
"""Those of `make test`; MLflow, SwanLab and ClearML take long."""
OWN = ("WANDB_", "MLFLOW_", "SWANLAB_", "TRACKIO_", "CLEARML_")
CONFIG = {"algorithm": {"type": "grpo", "kl": None}, "rewards": [{"weight": 1.0}], "seed": 0}


@pytest.fixture(autouse=True)
def _no_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a key or a server, as on a machine where nobody has logged in."""
    for name in [name for name in os.environ if name.startswith(OWN)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))


def write(sinks: Sinks, first: int, last: int) -> None:
    for step in range(first, last + 1):
        values = {"actor/loss": math.sin(step), "val-core/tiny/reward/mean@2": step / 3}
        sinks.write(step, {**values, "actor/grad_norm": math.nan})


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize("tracker", first_in_test(LIBRARIES.keys(), *SHORT))
def test_each_step_once_after_kills_and_rewinds(tracker: str, tmp_path: Path):
    run = TrackedRun(tracker=tracker, id="42", name="tiny", folder=str(tmp_path), config=CONFIG)
    record = JsonLines(tmp_path / "metrics.jsonl")
    (tmp_path / "mlflow").mkdir()
    (tmp_path / "mlflow" / "mlflow.new").write_bytes(b"its process was killed")

    def opened() -> tuple[Sinks, TrackerSink]:
        sink = TrackerSink(run, pause_seconds=0.1, end_seconds=120)
        return Sinks((record, sink)), sink

    sinks, sink = opened()
    write(sinks, 0, 5)
    eventually(lambda: sink.last_step >= 3, 120)
    assert sink.pid is not None
    os.kill(sink.pid, signal.SIGKILL)
    sinks.cut_after(3)
    write(sinks, 4, 8)
    eventually(lambda: sink.last_step >= 8, 120)
    sinks.cut_after(6)
    sinks.close()  # the controller is killed, and finds ranks that live on
    sinks, _ = opened()
    write(sinks, 7, 70)
    sinks.close()
    found = tracker_runs.points(tracker, tmp_path)
    assert found == tracker_runs.expected(tmp_path, tracker)
    assert len(found) == 71 * 2
    by_hand(tracker, tmp_path)
    assert tracker_runs.points(tracker, tmp_path) == found


@pytest.mark.processes
@pytest.mark.slow
def test_wandbs_process_has_ended_when_a_run_is_closed(tmp_path: Path):
    """It writes the end of an offline file when it ends, and is killed with the tracker's."""
    program = f"""
import pathlib, sys
from ppojob_trainer.trackers.messages import TrackedRun
from ppojob_trainer.trackers.wandb_run import WandbRun
run = WandbRun(TrackedRun("wandb", "42", "tiny", {str(tmp_path)!r}, {{}}))
run.write(0, 0.0, {{"actor/loss": 0.5}})
tasks = pathlib.Path("/proc/self/task")
living = lambda: "".join(path.read_text() for path in tasks.glob("*/children")).split()
before = living()
run.close("Succeeded")
print(len(before), len(living()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["1", "0"], done.stderr


def by_hand(tracker: str, folder: Path) -> None:
    program = [sys.executable, "-m", "ppojob_trainer.trackers", tracker, str(folder)]
    done = subprocess.run(program, check=True, capture_output=True, text=True)
    location = {
        "wandb": "wandb sync ",
        "mlflow": "mlflow ui --backend-store-uri sqlite:///",
        "swanlab": f"swanlab sync {folder}/swanlab/offline-42",
        "trackio": f"TRACKIO_DIR={folder}/trackio trackio show --project ppojob",
        "clearml": f"clearml-task --import-offline-session {folder}/clearml/offline/offline-",
    }[tracker]
    assert location in done.stdout


def test_a_configuration_as_parameters():
    assert flat(CONFIG) == {"algorithm.type": "grpo", "rewards": '[{"weight": 1.0}]', "seed": "0"}


def test_names_that_mlflow_takes():
    assert metric_name("val-core/openai/gsm8k/acc/mean@8") == "val-core/openai/gsm8k/acc/mean_at_8"
    assert metric_name("critic/a+b") == "critic/a_b"
