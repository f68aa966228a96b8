"""Dynamic sampling: a batch in which three prompts of ten teach something is filled in rounds.

The job is one pass over the data: it ends with the step that draws the last prompts.

The reward function says never the same twice, so nothing that a kill loses can be made again.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import run_folders
import tiny_jobs

from ppojob_trainer.controller.progress import STATUS_FILE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SIZE, SAMPLES, ROWS = 4, 3, 40
JUDGE = """
import random

def judge(data_source, solution_str, ground_truth, extra_info):
    with open({calls!r}, "a") as calls:
        calls.write("x")
    acc = random.random() if extra_info["index"] % 10 < 3 else 1.0
    return {{"score": random.random(), "acc": acc}}
"""
UNKEPT = "rows.part.write.after@2=kill"
"""The rows of a round are lost that has been scored: they are scored again."""
KILLED = {
    "the ranks in the second round, the controller in the third": (
        "rpc.generate.answer.before@2=kill",
        "journal.write.after@9=kill",
        "rpc.load_rows.answer.after@1=kill",
    ),
    "a rank before the second round is kept": (UNKEPT,),
    "the ranks before they have the rows together": (
        "rpc.place_rows.answer.before@1=kill",
        "rpc.place_rows.answer.after@2=kill",
    ),
    "everything at once": ("rpc.generate.answer.before@3=kill_group",),
}


def rounds_by_arithmetic() -> list[int]:
    """Rounds of each step: rows are drawn in their order, and row 0, 1 and 2 of ten have signal."""
    drawn, found = 0, []
    while drawn < ROWS:
        rounds = signal = 0
        while signal < SIZE:
            signal += sum((drawn + position) % ROWS % 10 < 3 for position in range(SIZE))
            drawn, rounds = drawn + SIZE, rounds + 1
        found.append(rounds)
    return found


@pytest.fixture
def job(tiny_job: Callable[..., Path], tiny_data: dict[str, object], tmp_path: Path) -> Path:
    judge = JUDGE.format(calls=str(tmp_path / "calls"))
    return tiny_job(
        data={**tiny_data, "shuffle": False, "validation": []},
        algorithm={
            "type": "grpo",
            "promptsPerStep": SIZE,
            "samplesPerPrompt": SAMPLES,
            "miniBatchPrompts": 2,
            "dynamicSampling": {"metric": "acc"},
        },
        roles={"actorRollout": {"ranksPerReplica": 2}},
        rewards=tiny_jobs.reward_at(tmp_path / "judge.py", judge),
        steps={"epochs": 1},
        checkpoint={"every": 2},
        recovery={"restartsWithoutProgress": 100},
    )


@pytest.mark.parametrize("points", KILLED.values(), ids=KILLED)
def test_a_batch_is_filled_in_as_many_rounds_as_arithmetic_says_and_a_kill_changes_nothing(
    points, run_through, replay, job: Path, tmp_path: Path, output: Path
):
    run_through(job, output, *points, seconds=500)
    lines = run_folders.metrics(output)
    rounds = [line["train/num_gen_batches"] for line in lines]
    assert rounds == rounds_by_arithmetic()
    assert sum(rounds) * SIZE > ROWS
    status = json.loads((output / STATUS_FILE).read_text())
    assert status["phase"] == "Succeeded"
    assert status["step"] == status["total_steps"] == len(rounds)
    for line in lines:
        assert line["training/zero_signal_groups"] == 0.0
        wasted = 1 - 1 / line["train/num_gen_batches"]
        assert line["training/filter_groups/wasted_share"] == pytest.approx(wasted)
    calls = (tmp_path / "calls").read_text()
    scored = sum(rounds) + (UNKEPT in points)
    assert len(calls) == scored * SIZE * SAMPLES
    names = sorted(path.name for path in (output / "rollouts").iterdir())
    assert len(names) == sum(rounds)
    assert names[:2] == ["step-000001-round-2.parquet", "step-000001-round-3.parquet"]
    trained = [
        row["score"]
        for name in names
        if name.startswith("step-000001")
        for row in pq.read_table(output / "rollouts" / name).to_pylist()
        if row["prompt_id"] % 10 < 3
    ][: SIZE * SAMPLES]
    assert len(trained) == SIZE * SAMPLES

    replay(job, output)
    assert (tmp_path / "calls").read_text() == calls
