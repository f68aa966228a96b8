import json
from collections.abc import Callable
from pathlib import Path

import pytest
import run_folders
import tiny_jobs

JOB = {**tiny_jobs.PPO, "steps": {"total": 4, "validateEvery": 2}}


@pytest.fixture
def parent(alone: Callable[..., Path]) -> Path:
    return alone(**JOB, checkpoint={"every": 1, "keepLast": 4})


def branch_of(run: Path, step: int) -> dict[str, object]:
    return {"every": 1, "branch": {"run": str(run), "step": step}}


@pytest.mark.long
def test_with_the_same_settings_it_is_the_run_itself(parent: Path, start, tiny_job, output: Path):
    run = start(tiny_job(**JOB, checkpoint=branch_of(parent, 2)), output).succeed()
    assert f"{parent}: the run starts from the checkpoint of step 2" in "\n".join(run.lines)
    expected, found = run_folders.result(parent), run_folders.result(output)
    assert found == {name: value for name, value in expected.items() if name in found}
    assert len(found["metrics"]) == 5
    assert [line.split("/")[0] for line in run.lines if line.startswith("step ")] == [
        "step 3",
        "step 4",
    ]


def test_other_settings_hold_from_there_whatever_is_killed(
    parent: Path, run_twice, tiny_job, tiny_folder: Path
) -> None:
    ppo = tiny_jobs.PPO["algorithm"] | {
        "samplesPerPrompt": 4,
        "kl": {"in": "reward", "coefficient": 0.5},
    }
    changed = {**JOB, "algorithm": ppo, "optimizer": {"learningRate": 3e-4}}
    data = json.loads(json.dumps(tiny_jobs.make_manifest(tiny_folder)["spec"]["data"]))
    changed["data"] = {**data, "maxResponseTokens": 12}
    job = tiny_job(**changed, checkpoint=branch_of(parent, 2))
    points = ("rpc.update.answer.before@3=kill", "controller.step.recorded@1=kill")
    calm = run_twice(job, *points)
    before, after = run_folders.metrics(parent), run_folders.metrics(calm)
    assert after[:3] == before[:3]
    assert (after[3]["actor/lr"], after[3]["actor/reward_kl_penalty_coeff"]) == (3e-4, 0.5)
    drawn, shorter = run_folders.rows(calm, 3), run_folders.rows(parent, 3)
    assert len(drawn) == 2 * len(shorter) == 16
    assert {row["prompt"] for row in drawn} == {row["prompt"] for row in shorter}
    assert max(row["response_tokens"] for row in drawn) == 12


def test_other_data_are_read_from_their_beginning(parent, start, tiny_job, tiny_folder, output):
    data = tiny_jobs.make_manifest(tiny_folder)["spec"]["data"] | {"seed": 7}
    run = start(tiny_job(**JOB | {"data": data}, checkpoint=branch_of(parent, 3)), output).succeed()
    assert "spec.data.seed: 0 -> 7; the data starts again" in "\n".join(run.lines)
    (line,) = (output / "checkpoints" / "step-000004").glob("manifest.json")
    assert json.loads(line.read_text())["manifest"]["progress"]["data"]["cursor"] == 4
