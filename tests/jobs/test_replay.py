from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import run_folders
import tiny_jobs
from job_runs import Run
from tiers import first_in_test

JUDGE = """
import random, time

def judge(data_source, solution_str, ground_truth, extra_info):
    with open({calls!r}, "a") as calls:
        calls.write("x")
    return {{"score": random.random(), "seconds": time.time()}}
"""
ROWS = 3 * 8 + 6 * 16
"""Of the validations before the first step and behind steps 3 and 6, and of six steps."""
SCORER_LOST = "rpc.score.answer.after@3=kill"
"""The reward rank forgets what it has said, and what of it still was on its way may be lost."""
KILLED = {
    "ranks, controller and reward functions, one after the other": (
        SCORER_LOST,
        "controller.step.computed@3=kill",
        "rpc.update.answer.before@9=kill",  # no checkpoint yet: back to the beginning
        "rpc.load_rows.answer.after@1=kill",
        "rpc.load_rows.answer.before@2=kill",
        "journal.write.after@16=kill",
    ),
    "everything at once": ("rpc.update.answer.after@8=kill_group",),
}


@pytest.fixture
def judged(tiny_job: Callable[..., Path], tmp_path: Path) -> Path:
    judge = JUDGE.format(calls=str(tmp_path / "calls"))
    return tiny_job(
        rewards=tiny_jobs.reward_at(tmp_path / "judge.py", judge),
        steps={"total": 6, "validateFirst": True, "validateEvery": 3},
        checkpoint={"every": None},
    )


def replayed(start, job: Path, of: Path, output: Path, *more: str) -> Run:
    return start(job, output, options=("--replay", str(of), *more))


@pytest.mark.parametrize("points", first_in_test(KILLED, "everything at once"))
def test_killed_anywhere_every_row_is_scored_once_and_a_replay_gives_the_same(
    points, run_through, replay, judged: Path, tmp_path: Path, output: Path
):
    run_through(judged, output, *points)
    calls = (tmp_path / "calls").read_text()
    assert len(calls) in ({ROWS, ROWS + 16} if SCORER_LOST in points else {ROWS})
    scores = pq.read_table(output / "rollouts" / "step-000003.parquet")["score"].to_pylist()
    assert len(set(scores)) == 16
    told = {line["step"]: line for line in run_folders.metrics(output)}[3]
    assert told["critic/score/mean"] == pytest.approx(sum(scores) / 16, rel=1e-12)

    second = replay(judged, output)
    assert (tmp_path / "calls").read_text() == calls
    assert not any("reward" in line for line in second.lines if line.startswith("starting"))


def test_a_recording_that_does_not_fit_is_refused(start, judged, tmp_path: Path, output: Path):
    short = ("--set", "spec.steps.total=1", "--set", "spec.steps.validateEvery=1")
    start(judged, output, options=short).succeed()
    nowhere = replayed(start, judged, tmp_path / "nowhere", tmp_path / "a")
    assert nowhere.wait() == 2
    assert nowhere.lines[-1].startswith('spec.rollout.replay: got "')
    assert nowhere.lines[-1].endswith(
        ": there is no run in it; the run folder of a job that has done a step"
    )
    other = replayed(start, judged, output, tmp_path / "b", "--set", "spec.data.seed=5")
    assert other.wait() == 2
    assert "train rows of step 1 answer other prompts than this job has there" in other.lines[-1]
    longer = replayed(start, judged, output, tmp_path / "c")
    assert longer.wait() == 2
    assert "it has no train rows of step 2" in longer.lines[-1]
