from pathlib import Path

import pytest
import run_folders
from pyarrow import parquet
from tiny_models import TEMPLATE

from ppojob_trainer.checkpoint.journal import Journal, RunBegan

BEGAN = 981_173_106.25
"""3 February 2001, 04:05:06 in UTC."""


@pytest.fixture
def dated(tiny_job, tiny_folder: Path, classifier: Path, tmp_path: Path) -> Path:
    """A job with policy and reward model apart; the templates of both ask for microseconds."""
    template = tmp_path / "dated.jinja"
    template.write_text("{{ strftime_now('%Y %S.%f ') }}" + TEMPLATE)
    return tiny_job(
        model={"path": str(tiny_folder / "model"), "chatTemplate": str(template)},
        rewardModel={"path": str(classifier), "dtype": "float32", "chatTemplate": str(template)},
        rewards=[],
        roles={"rewardModel": {"colocateWith": "none"}},
        steps={"total": 4},
        timeouts={"livenessSeconds": 60},
    )


@pytest.mark.long
def test_whoever_comes_back_sees_the_same_time(dated, run_through, start, tmp_path: Path):
    points = (
        "controller.step.computed@2=kill",
        "rpc.score_by_model.answer.before@1=kill",
        "rpc.generate.answer.before@4=kill",
    )
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for output in (whole, killed):
        (output / "checkpoints").mkdir(parents=True)
        Journal(output / "checkpoints" / "journal.jsonl").append(RunBegan(time=BEGAN))
    start(dated, whole).succeed()
    run_through(dated, killed, *points)
    assert run_folders.result(killed) == run_folders.result(whole)
    (rows,) = killed.glob("rollouts/step-000004.parquet/*")
    prompts = map(str, parquet.read_table(rows)["prompt"].to_pylist())
    assert all(text.startswith("2001 06.250000 ") for text in prompts)
