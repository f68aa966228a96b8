"""Rewards without answers: votes within groups, and how sure the policy is of what it draws."""

import math
from pathlib import Path

import pytest
import run_folders
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LETTERS = """
def most(data_source, solution_strs, ground_truth, extra_infos):
    marks = [text[:1] for text in solution_strs]
    label = max(marks, key=marks.count)
    return [{"score": mark == label, "of": len(marks), "pred": mark} for mark in marks]
"""
STEPS = {
    "steps": {"total": 3, "validateFirst": False, "validateLast": False},
    "checkpoint": {"every": 2},
}


def literal_certainty(model, tokenizer, row: dict, kind: str) -> float:
    """Of a row the mean over its tokens, by transformers' logits of the whole vocabulary."""
    prompt = tokenizer(row["prompt"], add_special_tokens=False)["input_ids"]
    response = row["response_ids"]
    assert len(prompt) == row["prompt_tokens"]
    with torch.no_grad():
        logits = model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
    log_p = torch.log_softmax(logits.double(), dim=1)
    if kind == "self_certainty":
        tokens = -log_p.mean(dim=1) - math.log(log_p.shape[1])
    else:
        tokens = (log_p.exp() * log_p).sum(dim=1)
    return float(tokens.mean())


def assert_first_step(output: Path, folder: Path, kind: str) -> list[float]:
    """Hold the metrics of the first step to what its rows say; answers what each row earned."""
    path = folder / "model"
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(path)
    rows = run_folders.rows(output, 1)
    earned = [literal_certainty(model, tokenizer, row, kind) for row in rows]
    first = run_folders.metrics(output)[0]
    told = {"mean": sum(earned) / len(earned), "max": max(earned), "min": min(earned)}
    for name, value in told.items():
        assert first[f"certainty_reward/{name}"] == pytest.approx(value, rel=1e-4)
    return earned


def test_votes_and_certainty_are_exact_over_kills(
    run_twice, replay, tiny_job, tiny_folder, tmp_path
):
    """The three prompts of a step are dealt to two pods, whole groups each."""
    path = tmp_path / "most.py"
    path.write_text(LETTERS)
    job = tiny_job(
        algorithm={
            "type": "grpo",
            "promptsPerStep": 3,
            "samplesPerPrompt": 4,
            "certaintyReward": {"coefficient": 0.5, "besideScores": True},
        },
        rewards=[{"function": "most", "source": {"path": str(path)}}],
        roles={"reward": {"replicas": 2}},
        recovery={"restartsWithoutProgress": 100},
        **STEPS,
    )
    points = ("rpc.score.answer.before@1=kill", "rpc.advantages.answer.after@2=kill")
    whole = run_twice(job, *points, "rpc.update.answer.before@3=kill")
    assert run_folders.unnamed(run_folders.metrics(whole)) == set()
    for step in (1, 2, 3):
        rows = run_folders.rows(whole, step)
        assert {row["of"] for row in rows} == {4.0}
        for first in range(0, 12, 4):
            marks = [row["response"][:1] for row in rows[first : first + 4]]
            label = max(marks, key=marks.count)
            scores = [row["score"] for row in rows[first : first + 4]]
            assert scores == [float(mark == label) for mark in marks]
    earned = assert_first_step(whole, tiny_folder, "self_certainty")
    scores = [row["score"] for row in run_folders.rows(whole, 1)]
    learnt = sum(score + 0.5 * own for score, own in zip(scores, earned, strict=True)) / 12
    assert run_folders.metrics(whole)[0]["critic/rewards/mean"] == pytest.approx(learnt, rel=1e-4)
    replay(job, whole)


@pytest.mark.parametrize("kind", ["self_certainty", "negative_entropy"])
def test_certainty_alone_needs_no_reward_and_ranks_change_only_rounding(
    kind, finished, even_folder
):
    job = {
        "algorithm": {
            "type": "grpo",
            "promptsPerStep": 4,
            "samplesPerPrompt": 4,
            "miniBatchPrompts": 2,
            "certaintyReward": {"type": kind},
        },
        "rewards": [],
        "training": {"autocast": "none", "microBatchTokens": 60},
        # Rows of a group are about as certain; divided by that, rounding grows from step to step.
        **STEPS,
        "steps": {**STEPS["steps"], "total": 2},
    }
    one = finished("one", **job)
    three = finished("three", **job, roles={"actorRollout": {"ranksPerReplica": 3}})
    run_folders.assert_close(three, one)
    assert_first_step(one, even_folder, kind)
    records = run_folders.metrics(one)
    assert all(record["actor/grad_norm"] > 0.0 for record in records)
    assert all("critic/score/mean" not in record for record in records)


def test_rewards_beside_certainty_alone_only_measure(finished, even_folder):
    algorithm = {"type": "grpo", "promptsPerStep": 4, "samplesPerPrompt": 4, "certaintyReward": {}}
    without = finished("without", algorithm=algorithm, rewards=[], **STEPS)
    measured = finished("measured", algorithm=algorithm, **STEPS)
    one, other = (run_folders.without_clock(output) for output in (without, measured))
    for plain, told in zip(one, other, strict=True):
        assert plain.items() <= told.items()
    assert other[0]["critic/score/mean"] > 0.0
    earned = assert_first_step(measured, even_folder, "self_certainty")
    assert other[0]["critic/rewards/mean"] == pytest.approx(sum(earned) / 16, rel=1e-4)
