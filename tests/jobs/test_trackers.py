import os
import shutil
import subprocess
import sys
from pathlib import Path

import job_points
import pytest
import run_folders
import tiny_jobs
import tracker_runs

STUB = Path(__file__).parents[1] / "support" / "stub_tracker.py"


def repeatable(points: tracker_runs.Points) -> tracker_runs.Points:
    """Without the clock's: a step that is done again takes another time."""
    return [point for point in points if run_folders.is_repeatable(point[1])]


def named(points: tracker_runs.Points) -> list[tuple[int, str]]:
    """Steps and names, but for the time of a save: begun again behind one, a step has none."""
    return [point[:2] for point in points if point[1] != "timing_s/save_checkpoint"]


def test_they_hold_a_run_that_was_killed(start, tiny_job, output, undisturbed, once, tmp_path):
    """The controller, a rank, and everything with the trackers (mlflow: unit/trackers)."""
    job = tiny_job(loggers=["console", "wandb", "trackio"])
    environment = {"HOME": str(tmp_path)} | job_points.armed(
        once,
        "controller.step.recorded@3=kill",
        "metrics.fsync.after@3=kill",
        "rpc.update.answer.before@13=kill",
        "controller.step.journaled@5=kill_group",
    )
    assert start(job, output, **environment).wait() == 3
    run_folders.wait_until_gone(output)
    run = start(job, output, HOME=str(tmp_path)).succeed()
    assert len(list(once.iterdir())) == 4
    assert run_folders.result(output) == undisturbed
    printed = "\n".join(run.lines)
    places = {
        "wandb": f"wandb sync {output}/wandb/offline-run-",
        "trackio": f"TRACKIO_DIR={output}/trackio trackio show",
    }
    for tracker, place in places.items():
        if f"{tracker}: not finished" in run.logs():  # on a busy machine
            program = [sys.executable, "-m", "ppojob_trainer.trackers", tracker, output]
            subprocess.run(program, check=True, env=tiny_jobs.environment(HOME=str(tmp_path)))
        else:
            assert place in printed
        found = tracker_runs.points(tracker, output)
        expected = tracker_runs.expected(output, tracker)
        assert repeatable(found) == repeatable(expected)
        assert named(found) == named(expected)


@pytest.mark.long
def test_one_that_hangs_changes_nothing(start, tiny_job, output: Path, undisturbed, tmp_path):
    (tmp_path / "way").write_text("hangs")
    shutil.copy(STUB, tmp_path / "wandb.py")
    job = tiny_job(loggers=["console", "wandb"])
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    start(job, output, PYTHONPATH=path, WANDB_STUB_FOLDER=str(tmp_path)).succeed()
    assert run_folders.result(output) == undisturbed
    log = (output / "logs" / "tiny-controller-0.log").read_text()
    assert log.count("WARNING") == 1, log
    assert "wandb: not finished: it has 0 of 13 steps; all are in metrics.jsonl" in log
    run_folders.wait_until_gone(output)
