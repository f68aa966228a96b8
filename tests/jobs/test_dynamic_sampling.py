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
        "rpc.place_rows.answer.before@1=kill",  # before they have the rows together
        "rpc.place_rows.answer.after@2=kill",
    ),
    "a rank before the second round is kept": (UNKEPT,),
    "everything at once": ("rpc.generate.answer.before@3=kill_group",),
}


TEXT_JUDGE = """
import zlib

def judge(data_source, solution_str, ground_truth, extra_info):
    number = zlib.crc32(solution_str.encode()) / 2**32
    return {"score": number, "acc": number if extra_info["index"] % 10 < 3 else 1.0}
"""
KILLED_AHEAD = {
    "engines": (
        "rpc.generate.answer.before@2=kill",
        "rpc.generate.answer.after@5=kill",
        "rpc.bring_weights.answer.after@2=kill",
        "rpc.hand_over.answer.before@4=kill",
    ),
    "who trains": (
        "rpc.update.answer.before@3=kill",
        "rpc.place_rows.answer.after@2=kill",
        "rpc.save_shards.answer.before@2=kill",
    ),
    "the controller": (
        "journal.write.after@9=kill",
        "controller.step.computed@3=kill",
        "checkpoint.shard.write.middle@4=kill_group",
    ),
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


def sections_of(folder: Path, data: dict[str, object], judge: str) -> dict[str, object]:
    """Of a job of one pass over the data, whose rewards are those of a function."""
    return {
        "data": {**data, "shuffle": False, "validation": []},
        "algorithm": {
            "type": "grpo",
            "promptsPerStep": SIZE,
            "samplesPerPrompt": SAMPLES,
            "miniBatchPrompts": 2,
            "dynamicSampling": {"metric": "acc"},
        },
        "roles": {"actorRollout": {"ranksPerReplica": 2}},
        "rewards": tiny_jobs.reward_at(folder / "judge.py", judge),
        "steps": {"epochs": 1},
        "checkpoint": {"every": 2},
        "recovery": {"restartsWithoutProgress": 100},
    }


@pytest.fixture
def job(tiny_job: Callable[..., Path], tiny_data: dict[str, object], tmp_path: Path) -> Path:
    judge = JUDGE.format(calls=str(tmp_path / "calls"))
    return tiny_job(**sections_of(tmp_path, tiny_data, judge))


@pytest.fixture(scope="module")
def ahead(
    tiny_data: dict[str, object], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, object]:
    """Sections of the same with engines in pods of their own, which draw ahead."""
    return {
        **sections_of(tmp_path_factory.mktemp("ahead"), tiny_data, TEXT_JUDGE),
        "rollout": {"engine": "huggingface", "dtype": "float32", "maxStaleness": 1},
        "roles": {"actorRollout": {"ranksPerReplica": 2}, "rollout": {"replicas": 2}},
        "timeouts": {"livenessSeconds": 60},
    }


@pytest.fixture(scope="module")
def calm(alone: Callable[..., Path], ahead: dict[str, object]) -> Path:
    """The run folder of such a job that nobody disturbs."""
    return alone(**ahead)


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


def test_first_rounds_are_drawn_by_the_weights_before(calm: Path) -> None:
    """And further ones by those that the step begins with."""
    lines = run_folders.metrics(calm)
    rounds = [int(line["train/num_gen_batches"]) for line in lines]
    assert rounds == rounds_by_arithmetic()
    for step, count in enumerate(rounds, 1):
        for number in range(count):
            suffix = f"-round-{number + 1}" if number else ""
            table = pq.read_table(calm / "rollouts" / f"step-{step:06d}{suffix}.parquet")
            versions = {s["version"] for row in table.to_pylist() for s in row["segments"]}
            assert versions == {max(0, step - 1 if number else step - 2)}
    staleness = [line["async/staleness_mean"] for line in lines]
    assert staleness[0] == 0.0
    assert 0.0 < max(staleness) <= 1.0


@pytest.mark.parametrize("points", KILLED_AHEAD.values(), ids=KILLED_AHEAD)
def test_no_kill_changes_a_bit_of_what_is_drawn_ahead(
    points, run_through, tiny_job: Callable[..., Path], ahead, calm: Path, output: Path
):
    run_through(tiny_job(**ahead), output, *points, seconds=500)
    assert run_folders.result(output) == run_folders.result(calm)


def test_rows_that_were_drawn_ahead_are_trained_on_again(replay, tiny_job, ahead, calm: Path):
    replay(tiny_job(**ahead), calm)
