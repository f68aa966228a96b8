from pathlib import Path

import pytest
import run_folders
import tiny_jobs

REWARD = """
def count(data_sources, solution_strs, ground_truths, extra_infos):
    with open({calls!r}, "a+") as calls:
        calls.write("x")
        number = calls.tell()
    scores = [float(place % 5) for place, _ in enumerate(solution_strs)]
    return [float("nan") if (number, place) in {failing} else score
            for place, score in enumerate(scores)]
"""
ROWS = 8


def rewards_at(path: Path, failing: list[tuple[int, int]]) -> list[dict[str, object]]:
    """A function that gives no score for the responses at some places in some of its calls."""
    calls = path.with_suffix(".calls")
    source = REWARD.format(calls=str(calls), failing=failing)
    return tiny_jobs.reward_at(path, source, onError="drop")


@pytest.mark.long
def test_a_critic_in_pods_of_its_own_trains_with_and_without_dropped_rows(
    run_through, replay, tiny_job, tiny_data, tmp_path, output
):
    """Rows are left out in steps 1 and 3; step 2 has all of them. Some tokens are rejected too."""
    failing = [(1, 0), (1, 5), (3, 2)]
    correction = {"rejection": [{"mode": "token_k3", "high": 0.5}]}
    algorithm = {**tiny_jobs.PPO["algorithm"], "rolloutCorrection": correction}
    job = tiny_job(
        data={**tiny_data, "validation": []},
        algorithm=algorithm,
        critic=tiny_jobs.PPO["critic"],
        roles=tiny_jobs.OWN_PODS,
        rewards=rewards_at(tmp_path / "count.py", failing),
        steps={"total": 3},
    )
    run_through(
        job, output, "rpc.advantages.answer.before@2=kill", "rpc.update.answer.before@5=kill"
    )
    lines = run_folders.metrics(output)
    dropped = [line["reward_extra/dropped/mean"] for line in lines]
    assert dropped == [2 / ROWS, 0.0, 1 / ROWS]
    # 0 to 4 and 0 to 2, of which places 0 and 5, none, and place 2 have no score.
    means = [line["critic/score/mean"] for line in lines]
    assert means == [13 / 6, 13 / 8, 11 / 7]
    replay(job, output)


def test_a_step_without_any_score_is_scored_again_once_the_function_is_mended(
    start, tiny_job, tiny_data, tmp_path, output
):
    path = tmp_path / "count.py"
    rewards = rewards_at(path, [(2, place) for place in range(ROWS)])
    job = tiny_job(
        data={**tiny_data, "validation": []},
        algorithm={"type": "grpo", "promptsPerStep": 4, "samplesPerPrompt": 2},
        rewards=rewards,
        steps={"total": 2},
    )
    run = start(job, output)
    assert run.wait() == 3, run.logs()
    (failed,) = (line for line in run.lines if line.startswith("failed: "))
    assert f"got drop for all {ROWS} responses of step 2" in failed
    rewards_at(path, [])
    start(job, output).succeed()
    assert [line["reward_extra/dropped/mean"] for line in run_folders.metrics(output)] == [0.0, 0.0]
