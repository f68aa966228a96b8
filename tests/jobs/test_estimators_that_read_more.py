import json
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest
import run_folders
import tiny_jobs
from job_runs import Run

JUDGE = """
import random

def judge(data_source, solution_str, ground_truth, extra_info):
    style, words = (random.randrange(10**6) for _ in range(2))  # far apart beside any epsilon
    return {"score": random.random(), "style": style, "words": 100 * words}
"""
STEPS, PROMPTS, SAMPLES = 3, 4, 2


@pytest.fixture
def job_of(tiny_job: Callable[..., Path], tiny_data: dict[str, object], tmp_path: Path):
    rewards = tiny_jobs.reward_at(tmp_path / "judge.py", JUDGE)

    def make(
        steps: int = STEPS, rest: dict[str, object] | None = None, **algorithm: object
    ) -> Path:
        return tiny_job(
            **(rest or {}),
            data={**tiny_data, "validation": []},
            algorithm={"promptsPerStep": PROMPTS, "samplesPerPrompt": SAMPLES, **algorithm},
            rewards=rewards,
            steps={"total": steps},
            checkpoint={"every": min(2, steps)},
        )

    return make


def test_remax_compares_with_a_greedy_response_whatever_is_killed(
    run_through: Callable[..., Run], replay: Callable[..., Run], job_of, output: Path
):
    job = job_of(type="remax")
    points = (
        "rpc.generate.answer.before@1=kill",
        "rows.part.write.after@2=kill",  # the greedy rows are kept, the others are not
        "rpc.advantages.answer.before@2=kill",
        "journal.write.after@8=kill",
    )
    run_through(job, output, *points)
    for line in run_folders.metrics(output):
        greedy = run_folders.rows(output, line["step"], "greedy")
        rows = run_folders.rows(output, line["step"])
        assert [row["prompt_id"] for row in greedy for _ in range(SAMPLES)] == [
            row["prompt_id"] for row in rows
        ]
        ahead = [row["score"] - greedy[row["row"] // SAMPLES]["score"] for row in rows]
        assert line["critic/advantages/max"] == pytest.approx(max(ahead), abs=1e-6)
        assert line["critic/advantages/min"] == pytest.approx(min(ahead), abs=1e-6)
        assert line["critic/score/max"] == max(row["score"] for row in rows)
    replay(job, output)


@pytest.mark.long
def test_token_baselines_read_probabilities_and_what_is_kept_whatever_is_killed(
    run_through: Callable[..., Run], replay: Callable[..., Run], job_of, output: Path
):
    """Under top-p engine and trainer differ, so some tokens are rejected; two updates a step."""
    rejection = [{"mode": "token_k1", "low": 0.5, "high": 1.243}]
    job = job_of(
        2,
        rest={"roles": {"reference": {"colocateWith": "none"}}, "rollout": {"topP": 0.8}},
        type="tir_optimal_token_baseline",
        miniBatchPrompts=2,
        rolloutCorrection={"weights": "token", "rejection": rejection},
        kl={"in": "loss"},
        entropyControl={"target": 100.0, "step": 0.01},
    )
    points = (
        "rpc.advantages.answer.after@2=kill",
        "rpc.forward.answer.after@3=kill",  # the reference: its third pass
        "rpc.update.answer.after@3=kill",
    )
    run_through(job, output, *points, seconds=500)
    for line in run_folders.metrics(output):
        assert 0.0 < line["rollout_corr/rollout_rs_masked_fraction"] < 1.0
        assert line["critic/advantages/max"] > 0.0 > line["critic/advantages/min"]
        assert line["actor/entropy_coeff"] == {1: 0.0, 2: 0.01}[line["step"]]
    replay(job, output)


def test_spo_knows_what_a_prompt_scored_whatever_is_killed(run_through, replay, job_of, output):
    """Half of the data a step, three times; some of its rows ask the same."""
    job = job_of(6, type="spo", promptsPerStep=20, samplesPerPrompt=1, spo={"decay": 0.75})
    points = (
        "controller.step.computed@3=kill",  # what was known is in the journal, step by step
        "controller.step.journaled@5=kill",
        "rpc.update.answer.before@6=kill",  # and in the checkpoint, as a whole
    )
    run_through(job, output, *points)
    known: dict[str, tuple[float, float]] = {}
    for line in run_folders.metrics(output):
        rows = run_folders.rows(output, line["step"])
        beliefs = [known.get(row["prompt"], (0.5, 0.5)) for row in rows]
        values = [right / (right + wrong) for right, wrong in beliefs]
        assert line["spo/p_hats"] == pytest.approx(statistics.fmean(values))
        assert line["spo/Neff"] == pytest.approx(statistics.fmean(map(sum, beliefs)))
        ahead = [row["score"] - value for row, value in zip(rows, values, strict=True)]
        most = (max(ahead) - statistics.fmean(ahead)) / statistics.stdev(ahead)
        assert line["critic/advantages/max"] == pytest.approx(most, rel=1e-5)
        for row in rows:
            (right, wrong), score = known.get(row["prompt"], (0.5, 0.5)), row["score"]
            known[row["prompt"]] = 0.75 * right + score, 0.75 * wrong + 1.0 - score
    assert 20 < len(known) < 40
    replay(job, output)


def test_gdpo_reads_what_each_reward_says(start: Callable[..., Run], job_of, output: Path):
    # Weights that never add up to nothing, whatever is drawn.
    weights = {"style": 1.0, "words": 2.0}
    gdpo = {"rewardKeys": list(weights), "rewardWeights": list(weights.values())}
    start(job_of(1, type="gdpo", gdpo=gdpo), output).succeed()
    (line,) = run_folders.metrics(output)
    rows = run_folders.rows(output, 1)
    told = run_folders.rows(output, 1, "advantages")
    assert [row["score"] for row in told] == [row["score"] for row in rows]
    assert {row["prompt_id"] for row in told} == {row["prompt_id"] for row in rows}
    # With two responses a prompt each reward of the better one is 1/sqrt(2): sums of signs.
    total, count = [], []
    for one, other in zip(rows[::2], rows[1::2], strict=True):
        values = [json.loads(row["reward_values"]) for row in (one, other)]
        signs = sum(
            weight if values[0][key] > values[1][key] else -weight
            for key, weight in weights.items()
        )
        total += [signs * 0.5**0.5, -signs * 0.5**0.5]
        count += [one["response_tokens"], other["response_tokens"]]
    tokens = sum(count)
    mean = sum(value * n for value, n in zip(total, count, strict=True)) / tokens
    squares = sum(n * (value - mean) ** 2 for value, n in zip(total, count, strict=True))
    deviation = (squares / (tokens - 1)) ** 0.5
    assert line["critic/advantages/max"] == pytest.approx((max(total) - mean) / deviation, 1e-3)


def test_a_reward_that_nobody_gives_is_named(start: Callable[..., Run], job_of, output: Path):
    run = start(job_of(1, type="gdpo", gdpo={"rewardKeys": ["style", "stile"]}), output)
    assert run.wait() == 3
    why = (
        'spec.algorithm.gdpo.rewardKeys: got "stile": row 0 of step 1 has no such number; score or '
        "acc or style or words"
    )
    assert any(why in line for line in run.lines), run.lines
