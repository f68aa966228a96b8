"""Responses that are drawn by their scores: policy and critic train on the same ones."""

from pathlib import Path

import pytest
import run_folders
import tiny_jobs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_what_is_drawn_is_drawn_again(start, run_through, tiny_job, tmp_path: Path):
    """The critic has pods of its own, to which the draw has to come."""
    algorithm = {**tiny_jobs.PPO["algorithm"], "resampling": {"method": "max_random"}}
    job = tiny_job(
        algorithm=algorithm,
        critic=tiny_jobs.PPO["critic"],
        roles={"critic": {"colocateWith": "none"}},
        steps={"total": 3},
        checkpoint={"every": 2},
        recovery={"restartsWithoutProgress": 100},
    )
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    start(job, whole).succeed()
    trained = run_folders.metrics(whole)[-3:]
    shares = [line["training/resampling/distinct_share"] for line in trained]
    assert all(0.0 < share < 1.0 for share in shares), shares
    points = ("rpc.advantages.answer.after@2=kill", "rpc.update.answer.before@7=kill")
    run_through(job, killed, *points, seconds=500)
    assert run_folders.result(killed) == run_folders.result(whole)
