"""Responses that are drawn by their scores: policy and critic train on the same ones."""

import pytest
import run_folders
import tiny_jobs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_what_is_drawn_is_drawn_again(run_twice, tiny_job):
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
    points = ("rpc.advantages.answer.after@2=kill", "rpc.update.answer.before@7=kill")
    whole = run_twice(job, *points)
    trained = run_folders.metrics(whole)[-3:]
    shares = [line["training/resampling/distinct_share"] for line in trained]
    assert all(0.0 < share < 1.0 for share in shares), shares
