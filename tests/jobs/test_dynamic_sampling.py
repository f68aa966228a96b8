import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import run_folders
import tiny_jobs
import tiny_models
from tiers import first_in_test

from ppojob_trainer.controller.progress import STATUS_FILE

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
    "a rank before the second round is kept, then everything at once": (
        UNKEPT,
        "rpc.generate.answer.before@3=kill_group",
    ),
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
        "rpc.sync_engine_weights.answer.after@2=kill",
        "rpc.transfer_rows.answer.before@4=kill",
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
    }


@pytest.fixture
def job(tiny_job: Callable[..., Path], tiny_data: dict[str, object], tmp_path: Path) -> Path:
    judge = JUDGE.format(calls=str(tmp_path / "calls"))
    return tiny_job(**sections_of(tmp_path, tiny_data, judge))


@pytest.fixture(scope="module")
def ahead(tiny_data, tmp_path_factory) -> dict[str, object]:
    return {
        **sections_of(tmp_path_factory.mktemp("ahead"), tiny_data, TEXT_JUDGE),
        "rollout": {"engine": "huggingface", "dtype": "float32", "maxStaleness": 1},
        "roles": {"actorRollout": {"ranksPerReplica": 2}, "rollout": {"replicas": 2}},
        "timeouts": {"livenessSeconds": 60},
    }


@pytest.fixture(scope="module")
def calm(alone: Callable[..., Path], ahead: dict[str, object]) -> Path:
    return alone(**ahead)


@pytest.mark.long
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


@pytest.mark.long
@pytest.mark.parametrize("points", KILLED_AHEAD.values(), ids=KILLED_AHEAD)
def test_no_kill_changes_a_bit_of_what_is_drawn_ahead(
    points, run_through, tiny_job: Callable[..., Path], ahead, calm: Path, output: Path
):
    run_through(tiny_job(**ahead), output, *points, seconds=500)
    assert run_folders.result(output) == run_folders.result(calm)


@pytest.mark.long
def test_rows_that_were_drawn_ahead_are_trained_on_again(replay, tiny_job, ahead, calm: Path):
    replay(tiny_job(**ahead), calm)


BESIDE, MOST = 2, 2
"""Rounds that are drawn beside one, and the most of a step, of the job below."""
KILLED_BESIDE = {
    "who draws and trains": (
        "rpc.generate.answer.before@2=kill",
        "rpc.generate.answer.after@4=kill",
        "rpc.place_rows.answer.after@2=kill",
        "rpc.update.answer.before@5=kill",
        "rpc.load_rows.answer.after@3=kill",
        "rpc.restore.answer.before@1=kill",
        "rows.under_way.rename.before@1=kill",
    ),
    "the others": (
        "journal.write.after@9=kill",
        "controller.step.begin@3=kill",
        "rpc.score.answer.before@5=kill",
        "controller.step.computed@3=kill",
        "checkpoint.seal.rename.before@1=kill",
        "rpc.save_shards.answer.after@3=kill",
    ),
}


@pytest.fixture(scope="module")
def by_turns(tiny_data, tmp_path_factory) -> dict[str, object]:
    """Sections of a job whose ranks draw rounds beside one: rows of a few tokens and of many."""
    folder = tmp_path_factory.mktemp("by_turns")
    sections = sections_of(folder, tiny_data, TEXT_JUDGE.replace("< 3", "< 5"))
    stops = [tiny_models.NAMES.index(sign) for sign in ".,:;!?+-*/"]
    rollout = {"engine": "huggingface", "dtype": "float32", "stopTokenIds": stops}
    return {
        **sections,
        "algorithm": {
            **sections["algorithm"],
            "dynamicSampling": {"metric": "acc", "maxRounds": MOST},
        },
        "rollout": {**rollout, "maxStaleness": BESIDE},
        "steps": {"total": 6},
        "checkpoint": {"every": 2, "keepLast": 10},
    }


@pytest.fixture(scope="module")
def beside(alone: Callable[..., Path], by_turns: dict[str, object]) -> Path:
    return alone(**by_turns)


def rounds_of(output: Path) -> list[tuple[int, list[dict[str, Any]]]]:
    """The step and the rows of each round of a run, in the order in which they were drawn."""
    found = []
    for step, line in enumerate(run_folders.metrics(output), 1):
        for number in range(int(line["train/num_gen_batches"])):
            suffix = f"-round-{number + 1}" if number else ""
            table = pq.read_table(output / "rollouts" / f"step-{step:06d}{suffix}.parquet")
            found.append((step, sorted(table.to_pylist(), key=lambda row: row["prompt_id"])))
    return found


def test_rounds_are_taken_in_the_order_of_the_prompts_until_a_batch_is_full(beside: Path) -> None:
    """By arithmetic, from the scores on the disk alone: with too few, the first others fill it."""
    step, signal = 1, dict[int, bool]()
    for number, (of_step, rows) in enumerate(rounds_of(beside)):
        assert of_step == step
        prompts = [(number * SIZE + position) % ROWS for position in range(SIZE)]
        assert sorted({row["prompt_id"] for row in rows}) == prompts
        for one in prompts:
            signal[one] = len({row["acc"] for row in rows if row["prompt_id"] == one}) > 1
        if sum(signal.values()) >= SIZE or len(signal) == MOST * SIZE:
            first = sorted(signal, key=lambda one: not signal[one])[:SIZE]
            trained = {row["prompt_id"] for row in run_folders.rows(beside, step, "advantages")}
            assert trained == set(first)
            step, signal = step + 1, {}
    assert step == 7
    taken = [line["train/num_gen_batches"] for line in run_folders.metrics(beside)]
    assert len(set(taken)) > 1


def test_which_weights_draw_which_tokens_is_a_matter_of_counting(beside: Path) -> None:
    """A plain simulation, of each rank: it gives each row under way a token an engine step."""
    rounds = rounds_of(beside)
    for rank in range(2):
        own = [rows[rank * len(rows) // 2 : (rank + 1) * len(rows) // 2] for _, rows in rounds]
        left = [[row["response_tokens"] for row in rows] for rows in own]
        expected: list[list[list[tuple[int, int]]]] = [[[] for _ in rows] for rows in own]
        for number, (step, _) in enumerate(rounds):
            longest = max(row["response_tokens"] for row in own[number])
            phase = max(*left[number], -(-longest // (BESIDE + 1)))
            for under_way in range(number, min(number + BESIDE + 1, len(rounds))):
                for row, tokens in enumerate(left[under_way]):
                    drawn = min(tokens, phase)
                    left[under_way][row] -= drawn
                    if drawn:
                        expected[under_way][row].append((step - 1, drawn))
        told = [
            [[(s["version"], s["tokens"]) for s in r["segments"]] for r in rows] for rows in own
        ]
        assert told == expected
        versions = [len({version for version, _ in row}) for rows in told for row in rows]
        assert max(versions) > 1, "some rows went on with newer weights"
    lines = run_folders.metrics(beside)
    assert 0.0 < max(line["async/staleness_max"] for line in lines) <= BESIDE


@pytest.mark.parametrize("points", first_in_test(KILLED_BESIDE, "the others"))
def test_no_kill_changes_a_bit_of_rounds_beside_rounds(
    points, run_through, tiny_job: Callable[..., Path], by_turns, beside: Path, output: Path
):
    run_through(tiny_job(**by_turns), output, *points, seconds=500)
    assert run_folders.result(output) == run_folders.result(beside)


def test_everything_killed_between_two_rounds(
    run_through_lives, tiny_job: Callable[..., Path], by_turns, beside: Path, output: Path
):
    points = ("rpc.generate.answer.after@7", "rpc.score.answer.before@4", "controller.step.begin@2")
    run_through_lives(tiny_job(**by_turns), output, *points)
    assert run_folders.result(output) == run_folders.result(beside)


@pytest.mark.long
def test_rows_that_were_drawn_beside_others_are_trained_on_again(
    replay, tiny_job, by_turns, beside
):
    replay(tiny_job(**by_turns), beside)


@pytest.mark.long
def test_a_step_that_fails_in_a_later_round_draws_its_rounds_again(
    start, tiny_job: Callable[..., Path], by_turns, beside: Path, tmp_path: Path, output: Path
):
    """The checkpoint that it leaves has what was under way before the first of them."""
    taken = [int(line["train/num_gen_batches"]) for line in run_folders.metrics(beside)]
    step = next(step for step in range(3, 7) if taken[step - 1] > 1)
    judge, path = TEXT_JUDGE.replace("< 3", "< 5"), tmp_path / "judge.py"
    rewards = tiny_jobs.reward_at(path, judge)
    job = tiny_job(**{**by_turns, "rewards": rewards, "checkpoint": {"every": None}})
    calls = (sum(taken[: step - 1]) + 1) * SIZE * SAMPLES
    count = f"""
    with open({str(tmp_path / "calls")!r}, "a+") as calls:
        calls.write("x")
        if calls.tell() > {calls}:
            raise KeyError("no")
    number ="""
    path.write_text(judge.replace("\n    number =", count))
    failed = start(job, output)
    assert failed.wait() == 3, failed.logs()
    assert any(f"step {step - 1} is saved" in line for line in failed.lines), failed.lines
    path.write_text(judge)
    start(job, output).succeed()
    assert run_folders.result(output) == run_folders.result(beside)


@pytest.mark.long
@pytest.mark.vllm
def test_vllm_draws_rounds_beside_rounds(run_through, tiny_job, by_turns, alone, output: Path):
    rollout = {**by_turns["rollout"], "engine": "vllm", "kvCacheGib": 0.1}
    changes = {**by_turns, "rollout": rollout, "steps": {"total": 4}, "roles": {}}
    whole = alone(**changes)
    lines = run_folders.metrics(whole)
    assert max(line["train/num_gen_batches"] for line in lines) > 1
    assert any(line["async/partial_rows"] > 0 for line in lines)
    run_through(tiny_job(**changes), output, "rpc.generate.answer.before@4=kill", seconds=500)
    assert run_folders.result(output) == run_folders.result(whole)
