"""A whole job whose responses a language model judges that the job itself serves, with vLLM."""

import os
import signal
from pathlib import Path

import pytest
import run_folders

pytestmark = [pytest.mark.slow, pytest.mark.vllm, pytest.mark.timeout(900)]


def test_killed_servers_and_reward_processes_change_nothing(
    start, tiny_job, tiny_folder: Path, tmp_path: Path, once: Path
) -> None:
    judge = {"path": str(tiny_folder / "model"), "maxTokens": 128, "kvCacheGib": 0.1}
    # What an untrained model says holds a digit or not; as long as it says the same, so do scores.
    asked = {"prompt": "{response}", "score_pattern": "([0-9])", "max_tokens": 12}
    changes = {
        "judge": judge,
        "rewards": [{"function": "judge", "arguments": asked, "errorScore": 0.5}],
        "roles": {"reward": {"cpu": 2}},
        "steps": {"total": 6},
        "recovery": {"restartsWithoutProgress": 5},
    }
    job, whole, disturbed = tiny_job(**changes), tmp_path / "whole", tmp_path / "disturbed"
    start(job, whole).succeed(600)
    scores = {row["score"] for step in range(1, 7) for row in run_folders.rows(whole, step)}
    assert len(scores) > 2, "what the judge says counts"
    armed = {
        "PPOJOB_FAILPOINTS": "rpc.score.answer.before@2=kill",
        "PPOJOB_FAILPOINT_ONCE": str(once),
    }
    run = start(job, disturbed, **armed)
    run.wait_for_step(3, 400)
    os.kill(server_of(disturbed), signal.SIGKILL)
    run.succeed(600)
    assert "the server of spec.judge ended by signal SIGKILL" in run.logs()
    assert [marker.name for marker in once.iterdir()] == ["rpc.score.answer.before"]
    assert run_folders.rewinds(disturbed) == 1, "only the start counts as one"
    assert run_folders.result(disturbed) == run_folders.result(whole)
    run_folders.wait_until_gone(disturbed)


def server_of(output: Path) -> int:
    """Process id of vLLM's server, which its guardian started."""
    found = run_folders.processes_of(output).items()
    return max(
        pid for pid, line in found if "-m vllm.entrypoints" in line and "program" not in line
    )
