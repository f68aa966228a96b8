import math
from pathlib import Path

import pytest
import run_folders
import tiny_jobs
import torch
from tiers import first_in_test
from transformers import AutoModelForCausalLM, AutoTokenizer

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


@pytest.mark.parametrize("kind", first_in_test(["self_certainty", "negative_entropy"]))
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
    if kind == "self_certainty":
        three = finished("three", **job, roles={"actorRollout": {"ranksPerReplica": 3}})
        run_folders.assert_close(three, one)
    assert_first_step(one, even_folder, kind)
    records = run_folders.metrics(one)
    assert all(record["actor/grad_norm"] > 0.0 for record in records)
    assert all("critic/score/mean" not in record for record in records)


@pytest.mark.long
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


def literal_answer(model, tokenizer, row: dict, limit: int) -> float:
    """How probable the ground truth is in the place of what stands behind the letter e, less how
    probable it is right behind the prompt, by transformers' logits; a character is a token."""

    def encode(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    def mean(before: str) -> float:
        context, answer = encode(row["prompt"] + before), encode(row["ground_truth"])
        with torch.no_grad():
            logits = model(torch.tensor([context + answer])).logits[0, len(context) - 1 : -1]
        probabilities = logits.double().softmax(dim=1)
        return float(probabilities[range(len(answer)), answer].mean())

    text = tokenizer.decode(row["response_ids"])
    before, _, behind = text.partition("e")
    before += "e" + (" " * (len(behind) - len(behind.lstrip(" "))) or " ")
    if text.count("e") != 1 or len(encode(before + row["ground_truth"])) > limit:
        return 0.0
    return max(0.0, mean(before) - mean(" "))


@pytest.mark.long
def test_the_probability_of_answers_is_exact_over_kills_and_stages(
    run_twice, finished, tiny_data, even_folder, tmp_path
):
    """Its pass reads other rows than the step has, of which some have no answer."""
    certainty = {"type": "answer_probability", "marker": "e", "debias": True, "coefficient": 5.0}
    names = ("train", "validation")
    data = {name: [{"path": str(even_folder / f"{name}.jsonl")}] for name in names}
    job = {
        "data": {**tiny_data, **data, "maxResponseTokens": 32},
        "algorithm": {
            "type": "reinforce_plus_plus_baseline",
            "promptsPerStep": 3,
            "samplesPerPrompt": 8,
            "certaintyReward": certainty,
        },
        "rewards": [],
        **STEPS,
        "steps": {**STEPS["steps"], "total": 2},
    }
    points = ("rpc.place_rows.answer.after@1=kill", "rpc.forward.answer.before@2=kill")
    manifest = tiny_jobs.write_manifest(tmp_path / "job", even_folder, **job)
    one = run_twice(manifest, *points)
    stages = {"actorRollout": {"ranksPerReplica": 4, "parallelism": {"pipeline": 2}}}
    run_folders.assert_close(finished("stages", **job, roles=stages), one)
    path = even_folder / "model"
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(path)
    earned = [literal_answer(model, tokenizer, row, 32) for row in run_folders.rows(one, 1)]
    assert 3 <= sum(value > 0.0 for value in earned) <= 20
    first = run_folders.metrics(one)[0]
    told = {"mean": sum(earned) / len(earned), "max": max(earned), "min": min(earned)}
    for name, value in told.items():
        assert first[f"certainty_reward/{name}"] == pytest.approx(value, rel=1e-4)
    assert first["actor/grad_norm"] > 0.0
