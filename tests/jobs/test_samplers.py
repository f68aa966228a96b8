import importlib.util
import json
import math
import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import run_folders
import tiny_jobs
from job_runs import Run

from ppojob_trainer.data.samplers import uncertain

EXAMPLE = Path(__file__).parents[2] / "examples" / "samplers" / "adarft.py"
ROWS, PROMPTS, SAMPLES = 40, 4, 2
ARGUMENTS = {"column": "index", "start": 7.0, "largest": 39.0, "step_size": 9.0}
ADAPTIVE = {
    "source": {"path": str(EXAMPLE)},
    "function": "adaptive",
    "arguments": ARGUMENTS,
    "columns": ["index"],
}
GRPO = {"type": "grpo", "promptsPerStep": PROMPTS, "samplesPerPrompt": SAMPLES}


@pytest.fixture
def job_of(tiny_job: Callable[..., Path], tiny_data: dict[str, object]):
    def make(sampler: dict[str, object], steps: int, **changes: object) -> Path:
        algorithm = changes.pop("algorithm", GRPO)
        checkpoint = changes.pop("checkpoint", {"every": 2})
        return tiny_job(
            data={**tiny_data, "validation": [], "sampler": sampler, **changes.pop("data", {})},
            algorithm=algorithm,
            steps={"total": steps},
            checkpoint={**checkpoint, "keepLast": 9},
            **changes,
        )

    return make


def scores_of(output: Path, step: int) -> dict[int, list[float]]:
    """The scores of a step by the number of the row, in the order in which they were drawn."""
    found: dict[int, list[float]] = {}
    rounds = len(list((output / "rollouts").glob(f"step-{step:06d}-round-*.parquet")))
    for number in ["", *(f"-round-{round_ + 2}" for round_ in range(rounds))]:
        table = pq.read_table(output / "rollouts" / f"step-{step:06d}{number}.parquet")
        for row in sorted(table.to_pylist(), key=lambda row: row["row"]):
            found.setdefault(row["prompt_id"], []).append(row["score"])
    return found


def seen_in(output: Path, step: int) -> dict[str, list[float | None]]:
    manifest = output / "checkpoints" / f"step-{step:06d}" / "manifest.json"
    return json.loads(manifest.read_text())["manifest"]["progress"]["rows_seen"]


def test_the_example_draws_the_same_rows_whatever_is_killed(run_through, replay, job_of, output):
    job = job_of(ADAPTIVE, 6)
    points = (
        "controller.step.computed@2=kill",  # nothing of the step is known
        "controller.step.journaled@3=kill",  # what the rows scored is in the journal
        "rpc.update.answer.before@5=kill",  # and in the checkpoint, with the target
    )
    run_through(job, output, *points)
    module = importlib.util.spec_from_file_location("adarft", EXAMPLE)
    example = importlib.util.module_from_spec(module)
    module.loader.exec_module(example)
    last, last_step, draws = np.full(ROWS, np.nan), np.zeros(ROWS), np.zeros(ROWS)
    state, targets = None, []
    for step in range(1, 7):
        told = {
            "index": list(range(ROWS)),
            "last_score": last,
            "last_step": last_step,
            "draws": draws,
        }
        chosen, state = example.adaptive(step, 0, PROMPTS, told, state, **ARGUMENTS)
        targets.append(state)
        drawn = scores_of(output, step)
        assert list(drawn) == chosen.tolist()
        for row, scores in drawn.items():
            last[row], last_step[row] = statistics.fmean(scores), step
            draws[row] += 1
    assert len(set(targets)) > 2, "it moves"
    seen = seen_in(output, 6)
    assert {int(row): known[0] for row, known in seen.items()} == {
        row: times for row, times in enumerate(draws) if times
    }
    replay(job, output)


@pytest.mark.long
def test_prompts_that_give_way_to_others_are_known_too(run_through, job_of, output, tmp_path):
    """Three of four rows score alike, so steps have several rounds, each of other rows."""
    judge = """
import zlib

def judge(data_source, solution_str, ground_truth, extra_info):
    return 1.0 if extra_info["index"] % 4 else zlib.crc32(solution_str.encode()) / 2**32
"""
    sampling = {"maxRounds": 5, "promptsPerRound": 4}
    job = job_of(
        {"function": "uncertain"},
        3,
        algorithm={**GRPO, "samplesPerPrompt": 3, "dynamicSampling": sampling},
        rewards=tiny_jobs.reward_at(tmp_path / "judge.py", judge),
    )
    run_through(job, output, "rpc.generate.answer.before@2=kill", "journal.write.after@9=kill")
    values, seen = np.full(ROWS, 0.5), dict[int, tuple[int, int]]()
    for step in range(1, 4):
        drawn = scores_of(output, step)
        chosen = uncertain(step, 0, 20, {"value": values})
        assert list(drawn) == chosen[: len(drawn)]
        assert all(len(scores) == 3 for scores in drawn.values())
        for row, scores in drawn.items():
            values[row] = statistics.fmean(scores)
            seen[row] = (seen.get(row, (0, 0))[0] + 1, step)
    assert sum(draws for draws, _ in seen.values()) > 3 * PROMPTS, "one round was not enough"
    found = {int(row): (known[0], known[1]) for row, known in seen_in(output, 3).items()}
    assert found == seen


@pytest.mark.long
def test_spo_draws_by_its_values(run_through, job_of, tiny_data, output: Path, tmp_path: Path):
    """Of every second row scores are known from beforehand."""
    (source,) = tiny_data["train"]
    rows = [json.loads(line) for line in Path(source["path"]).read_text().splitlines()]
    for number, row in enumerate(rows):
        tried = [float(number % 3 > 0), 1.0, 0.0, 0.0] if number % 2 else None
        row["prompt"][0]["content"] += f"+{number}"  # no two ask the same
        row["extra_info"]["tried"] = tried
    file = tmp_path / "tried.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    spo = {"type": "spo", "promptsPerStep": 8, "samplesPerPrompt": 1, "spo": {"decay": 0.75}}
    sampler = {"function": "uncertain", "arguments": {"epsilon": 0.01}}
    job = job_of(
        sampler, 5, algorithm=spo, data={"train": [{"path": str(file)}], "scoresKey": "tried"}
    )
    run_through(job, output, "controller.step.computed@3=kill", "rpc.update.answer.before@4=kill")
    known = []
    for row in rows:
        tried = row["extra_info"]["tried"] or []
        weight = 4 / (len(tried) + 1) if tried else 1.0
        known.append((weight * (sum(tried) + 0.5), weight * (len(tried) - sum(tried) + 0.5)))
    for step, line in enumerate(run_folders.metrics(output), 1):
        values = np.array([right / (right + wrong) for right, wrong in known])
        drawn = scores_of(output, step)
        assert list(drawn) == uncertain(step, 0, 8, {"value": values}, epsilon=0.01)
        assert line["spo/p_hats"] == pytest.approx(statistics.fmean(values[row] for row in drawn))
        for row, (score,) in drawn.items():
            right, wrong = known[row]
            known[row] = 0.75 * right + score, 0.75 * wrong + 1 - score


def test_a_mistake_ends_the_job_behind_a_checkpoint_and_a_mended_file_goes_on(
    start: Callable[..., Run], job_of, output: Path, tmp_path: Path
):
    file = tmp_path / "mine.py"
    good = "def mine(step, seed, count, rows):\n    return list(range(step, step + count))\n"
    file.write_text(good.replace("    return", "    assert step < 3, 'too far'\n    return"))
    job = job_of({"source": {"path": str(file)}, "function": "mine"}, 4, checkpoint={"every": 4})
    failed = start(job, output)
    assert failed.wait() != 0
    text = "\n".join(failed.lines)
    told = f"spec.data.sampler: got AssertionError: too far: it raised at {file}:2 mine; a function"
    assert told in text, text
    assert "step 2 is saved: fix the function" in text
    file.write_text(good)
    start(job, output).succeed()
    for step in range(1, 5):
        assert list(scores_of(output, step)) == [step, step + 1, step + 2, step + 3]


@pytest.mark.long
def test_a_branch_knows_what_rows_have_scored(start, job_of, output: Path, tmp_path: Path):
    start(job_of(ADAPTIVE, 3, checkpoint={"every": 1}), output).succeed()
    nearest = {"function": "nearest", "arguments": {"explore": 0.0, "target": 1.0}}
    origin = {"every": 2, "branch": {"run": str(output), "step": 2}}
    job = job_of(nearest, 4, checkpoint=origin)
    branch = tmp_path / "branch"
    run = start(job, branch).succeed()
    assert "the data starts again" not in "\n".join(run.lines)
    seen = {int(row): known for row, known in seen_in(output, 2).items()}
    values = {row: min(seen[row][4], 1.0) if row in seen else 0.5 for row in range(ROWS)}
    best = sorted(abs(value - 1.0) for value in values.values())[PROMPTS - 1]
    drawn = list(scores_of(branch, 3))
    assert len(drawn) == PROMPTS
    assert all(abs(values[row] - 1.0) <= best for row in drawn)
    assert math.isfinite(best)
