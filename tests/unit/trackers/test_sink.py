import logging
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from patience import eventually

from ppojob_trainer.metrics.sinks import JsonLines, Sinks
from ppojob_trainer.trackers.messages import TrackedRun
from ppojob_trainer.trackers.sink import TrackerSink

pytestmark = pytest.mark.processes

STUB = Path(__file__).parents[2] / "support" / "stub_tracker.py"
KEY = "0123456789abcdef"


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Puts a library in the place of wandb; answers the folder with what it was given."""

    def make(way: str) -> Path:
        folder = tmp_path / "stub"
        folder.mkdir()
        (folder / "way").write_text(way)
        shutil.copy(STUB, folder / "wandb.py")
        path = os.environ.get("PYTHONPATH", "")
        monkeypatch.setenv("PYTHONPATH", f"{folder}:{path}" if path else str(folder))
        monkeypatch.setenv("WANDB_STUB_FOLDER", str(folder))
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        return folder

    return make


def sinks(folder: Path, **patience: float) -> Sinks:
    run = TrackedRun(tracker="wandb", id="1", name="tiny", folder=str(folder), config={})
    tracker = TrackerSink(run, **{"pause_seconds": 0.05, **patience})
    return Sinks((JsonLines(folder / "metrics.jsonl"), tracker))


def logged(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "logged").read_text().split()]


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("way", ["hangs", "hangs_at_3"])
def test_one_that_hangs_is_not_waited_for(way, stub, tmp_path: Path, caplog):
    stub(way)
    all_sinks = sinks(tmp_path, end_seconds=0.3)
    for step in range(1, 101):
        all_sinks.write(step, {"x": 1.0})
    began = time.monotonic()
    all_sinks.close()
    assert time.monotonic() - began < 60
    (line,) = lines(caplog)
    assert line.startswith("wandb: not finished: it has ")
    assert " of 100 steps; all are in metrics.jsonl" in line


def test_one_that_gives_no_answer_is_started_again(stub, tmp_path: Path, caplog):
    folder = stub("hangs_at_3")
    all_sinks = sinks(tmp_path, answer_seconds=4.0, end_seconds=0.1)
    for step in range(1, 5):
        all_sinks.write(step, {"x": 1.0})
    eventually(lambda: (folder / "tried").exists() and len((folder / "tried").read_bytes()) == 2)
    (folder / "way").write_text("works")
    all_sinks.close()
    assert lines(caplog)[0].startswith("wandb: gave no answer in 4 s; the job continues without it")
    assert logged(folder)[:2] == [1, 2]


def test_one_that_raises_costs_one_line_without_the_key(stub, tmp_path: Path, caplog):
    folder = stub("raises")
    all_sinks = sinks(tmp_path)
    all_sinks.write(1, {"x": 1.0})
    eventually(lambda: (folder / "tried").exists() and len((folder / "tried").read_bytes()) > 2)
    all_sinks.close()
    raised, unfinished = lines(caplog)
    failure = "ConnectionError: no https://***@api.wandb.ai and more"
    assert raised.startswith(f"wandb: {failure}; the job continues without it")
    assert "it has 0 of 1 steps" in unfinished
    assert KEY not in caplog.text


def test_one_that_is_killed_goes_on_behind_what_it_has(stub, tmp_path: Path, caplog):
    """The kill is between taking a step and saying so; then the job goes back, and on."""
    folder = stub("dies_at_3")
    all_sinks = sinks(tmp_path)
    for step in range(1, 5):
        all_sinks.write(step, {"x": 1.0})
    eventually(lambda: (folder / "logged").exists() and logged(folder)[-1] == 4)
    all_sinks.cut_after(2)
    for step in range(3, 7):
        all_sinks.write(step, {"x": 1.0})
    all_sinks.close()
    assert logged(folder) == [1, 2, 3, 4, 5, 6]
    assert (folder / "finished").read_text() == "1", "a job without summary has failed"
    (line,) = lines(caplog)
    assert line.startswith("wandb: was killed by signal 9; the job continues without it")


def test_a_job_that_succeeds_says_so(stub, tmp_path: Path, caplog):
    folder = stub("works")
    all_sinks = sinks(tmp_path)
    all_sinks.write(0, {"x": 1.0})
    (tmp_path / "summary.json").write_text('{"phase": "Succeeded", "steps": 0}')
    all_sinks.close()
    assert logged(folder) == [0]
    assert (folder / "finished").read_text() == "0"
    assert lines(caplog) == []
