"""The kill test with the real rollout engine: bit-equal, although vLLM is loaded many times."""

from pathlib import Path

import job_points
import pytest
import run_folders

pytestmark = [pytest.mark.slow, pytest.mark.vllm, pytest.mark.timeout(900)]

ROLLOUT = {"engine": "vllm", "kvCacheGib": 0.25}
CHANGES = {
    "rollout": ROLLOUT,
    "training": {"autocast": "auto"},
    "steps": {"total": 4, "validateEvery": 2},
    "recovery": {"restartsWithoutProgress": 10},
}


def test_killed_with_vllm_is_not_lost(start, tiny_job, tmp_path: Path, once):
    job = tiny_job(**CHANGES)
    whole, disturbed = tmp_path / "whole", tmp_path / "disturbed"
    assert start(job, whole).wait() == 0
    armed = job_points.armed(
        once,
        "rpc.generate.answer.before@3=kill",  # a rank, with a response phase lost
        "controller.step.computed@2=kill",
        "rpc.save_shards.answer.after@1=kill_group",  # everything, in the middle of a commit
    )
    run = start(job, disturbed, **armed)
    assert run.wait(600) == 3, run.lines
    run_folders.wait_until_gone(disturbed)
    start(job, disturbed).succeed(600)
    assert len(list(once.iterdir())) == 3
    assert run_folders.result(disturbed) == run_folders.result(whole)
