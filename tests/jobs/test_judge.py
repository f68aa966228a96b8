import os
import signal
from pathlib import Path

import job_points
import pytest
import run_folders
import tiny_jobs
from tiers import first_in_test

OWN = """
import json, os, zlib, urllib.request

def post(url, body):
    kind = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), kind)
    with urllib.request.urlopen(request) as answer:
        return json.loads(answer.read())

def own(data_source, solution_str, ground_truth, extra_info, reward_router_address,
        reward_model_tokenizer):
    '''What the judge says, as a number; an untrained one says anything, to each response else.'''
    seed = zlib.crc32(solution_str.encode()) % 1000
    asked = {"model": os.environ["PPOJOB_JUDGE_MODEL"], "max_tokens": 8, "seed": seed,
             "messages": [{"role": "user", "content": solution_str}]}
    said = post(f"http://{reward_router_address}/v1/chat/completions", asked)
    said = said["choices"][0]["message"]["content"]
    tokens = {"input_ids": reward_model_tokenizer("So: " + solution_str)["input_ids"],
              "sampling_params": {"max_new_tokens": 4, "sampling_seed": seed}}
    drawn = post(f"http://{reward_router_address}/generate", tokens)["output_ids"]
    assert len(drawn) <= 4
    return {"score": zlib.crc32(f"{said}{drawn}".encode()) % 100 / 100, "said": said}
"""
pytestmark = pytest.mark.vllm


@pytest.mark.parametrize("killed", first_in_test(["the server", "the process of rewards"]))
def test_a_killed_server_or_process_of_rewards_changes_nothing(
    start, tiny_job, tiny_folder: Path, tmp_path: Path, once: Path, killed: str
) -> None:
    judge = {"path": str(tiny_folder / "model"), "maxTokens": 128, "kvCacheGib": 0.1}
    built_in = {
        "prompt": "{response}",
        "score_pattern": "no number here: ([0-9]+)",
        "max_tokens": 8,
    }
    (own,) = tiny_jobs.reward_at(tmp_path / "own.py", OWN)
    changes = {
        "judge": judge,
        "rewards": [{"function": "judge", "arguments": built_in, "errorScore": 0.5}, own],
        "roles": {"reward": {"cpu": 2}},
        "steps": {"total": 6},
        "recovery": {"restartsWithoutProgress": 5},
    }
    job, whole, disturbed = tiny_job(**changes), tmp_path / "whole", tmp_path / "disturbed"
    start(job, whole).succeed(600)
    scores = {row["score"] for step in range(1, 7) for row in run_folders.rows(whole, step)}
    assert len(scores) > 2, "what the judge says counts"
    assert "the judge gave no number" in (whole / "logs" / "tiny-reward-0.log").read_text()
    if killed == "the server":
        run = start(job, disturbed)
        run.wait_for_step(3, 400)
        os.kill(server_of(disturbed), signal.SIGKILL)
        run.succeed(600)
        assert "the server of spec.judge ended by signal SIGKILL" in run.logs()
    else:
        points = job_points.armed(once, "rpc.score.answer.before@2=kill")
        start(job, disturbed, **points).succeed(600)
        assert job_points.fired(once) == {"rpc.score.answer.before"}
    assert run_folders.rewinds(disturbed) == 1, "only the start counts as one"
    assert run_folders.result(disturbed) == run_folders.result(whole)
    run_folders.wait_until_gone(disturbed)


def server_of(output: Path) -> int:
    found = run_folders.processes_of(output).items()
    return max(
        pid
        for pid, line in found
        if "-m ppojob_trainer.rollout.vllm_server" in line and "program" not in line
    )
