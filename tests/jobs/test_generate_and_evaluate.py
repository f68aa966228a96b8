import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import agent_jobs
import job_points
import pyarrow.parquet as pq
import pytest
import run_folders
import tiny_jobs
from job_runs import Run

SAMPLING = {"samples": 3, "temperature": 1.0}
ROLLOUT = {"engine": "huggingface", "dtype": "float32", "validation": SAMPLING}
SHORT = {"total": 2, "validateEvery": 1}
FIRST = "validation/step-000000.parquet"
DRAWN = ("response_ids", "rollout_logprobs", "segments", "response", "truncated", "prompt_id")
MIXED = '''
def mixed(data_source, solution_str, ground_truth, extra_info):
    """A score with a vote, a value of some rows, and another one each time."""
    import random
    letters = sum(character.isalpha() for character in solution_str)
    return {"score": letters / 7 + random.random() / 9, "pred": solution_str[:1] or "none"}
'''


def rows(folder: Path) -> dict[str, list[Any]]:
    """The columns of a batch, in the order of its rows."""
    found: dict[str, list[Any]] = pq.read_table(folder).sort_by("row").to_pydict()
    return found


def numbers(record: dict[str, float]) -> dict[str, float]:
    return {
        k: v for k, v in record.items() if k == "step" or k.startswith(("val-core/", "val-aux/"))
    }


def evaluated(*arguments: object) -> list[dict[str, float]]:
    command = [sys.executable, "-m", "ppojob_cli", "evaluate", *map(str, arguments), "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def generate(start: Callable[..., Run]) -> Callable[..., Run]:
    def run(manifest: Path, output: Path, *options: object, **environment: str) -> Run:
        given = tuple(map(str, options))
        return start(manifest, output, given, command="generate", **environment)

    return run


@pytest.fixture(scope="module")
def trained(alone: Callable[..., Path]) -> Path:
    """The run of a job with all models, which validates with several samples."""
    return alone(**tiny_jobs.PPO, rollout=ROLLOUT, steps=SHORT)


def ppo(tiny_job: Callable[..., Path], **changes: object) -> Path:
    return tiny_job(**{**tiny_jobs.PPO, "rollout": ROLLOUT, "steps": SHORT, **changes})


def test_what_is_generated_is_the_first_validation_of_the_job(generate, tiny_job, trained, output):
    manifest = ppo(tiny_job)
    run = generate(manifest, output).succeed()
    ours, theirs = rows(output / FIRST), rows(trained / FIRST)
    assert {name: ours[name] for name in DRAWN} == {name: theirs[name] for name in DRAWN}
    # No trainer, no other model, nothing that scores.
    assert {log.stem for log in (output / "logs").glob("tiny-*")} == {
        "tiny-controller-0",
        "tiny-actor-rollout-0",
    }
    written = pq.read_table(output / "responses.parquet").to_pylist()
    assert [one for row in written for one in row["responses"]] == theirs["response"]
    given = [json.loads(line) for line in (Path(trained_data(manifest))).read_text().splitlines()]
    assert [{k: row[k] for k in given[0]} for row in written] == given
    assert f"done: {output / 'responses.parquet'}" in "\n".join(run.lines)
    # The job's own rewards score it to the numbers of its first validation.
    (first, *_) = map(numbers, run_folders.metrics(trained))
    assert evaluated(output) == [first]
    # The same command has nothing left to do.
    before = (output / "responses.parquet").stat().st_mtime_ns
    generate(manifest, output).succeed()
    assert (output / "responses.parquet").stat().st_mtime_ns == before
    # Another one would write over it.
    refused = generate(manifest, output, "--set", "spec.seed=4")
    assert refused.wait() == 2, refused.logs()
    assert (output / "responses.parquet").stat().st_mtime_ns == before


def trained_data(manifest: Path) -> str:
    from ruamel.yaml import YAML

    found: str = YAML(typ="safe").load(manifest)["spec"]["data"]["validation"][0]["path"]
    return found


@pytest.mark.long
@pytest.mark.parametrize(
    "changes",
    [
        {"steps": {"validateOnly": True}},
        {"steps": {"validateOnly": True}, "roles": tiny_jobs.OWN_PODS},
        {"steps": {"generateOnly": True}, "roles": {"rollout": {"replicas": 1}}},
    ],
)
def test_without_training_responses_are_the_same(changes, start, tiny_job, trained, output):
    start(ppo(tiny_job, **changes), output).succeed()
    ours, theirs = rows(output / FIRST), rows(trained / FIRST)
    is_scored = "validateOnly" in changes["steps"]
    names = ours.keys() if is_scored else DRAWN
    assert {name: ours[name] for name in names} == {name: theirs[name] for name in names}
    if is_scored:
        first = numbers(run_folders.metrics(trained)[0])
        assert [numbers(one) for one in run_folders.metrics(output)] == [first]
        summary = json.loads((output / "summary.json").read_text())
        assert (summary["phase"], summary["steps"]) == ("Succeeded", 0)
        assert not list(output.glob("checkpoints/step-*"))
        assert not (output / "export").exists()


@pytest.mark.long
def test_two_engines_and_adapters(generate, start, tiny_folder, tmp_path: Path) -> None:
    """Adapters that have learnt nothing change nothing."""
    lora = {"path": str(tiny_folder / "model"), "lora": {"rank": 4}}
    changes = {"rollout": ROLLOUT, "steps": {"total": 1}, "model": lora}
    changes["roles"] = {"actorRollout": {"ranksPerReplica": 2}}
    manifest = tiny_jobs.write_manifest(tmp_path, tiny_folder, **changes)
    start(manifest, tmp_path / "trains").succeed()
    generate(manifest, tmp_path / "run").succeed()
    ours, theirs = rows(tmp_path / "run" / FIRST), rows(tmp_path / "trains" / FIRST)
    assert {name: ours[name] for name in DRAWN} == {name: theirs[name] for name in DRAWN}


@pytest.mark.long
@pytest.mark.vllm
def test_a_real_engine(generate, start, tiny_folder: Path, tmp_path: Path) -> None:
    rollout = {"engine": "vllm", "kvCacheGib": 0.1, "maxSequences": 16, "validation": SAMPLING}
    changes = {"rollout": rollout, "steps": {"total": 1, "validateLast": False}}
    manifest = tiny_jobs.write_manifest(tmp_path, tiny_folder, **changes)
    start(manifest, tmp_path / "trains").succeed(600)
    generate(manifest, tmp_path / "run").succeed(600)
    ours, theirs = rows(tmp_path / "run" / FIRST), rows(tmp_path / "trains" / FIRST)
    assert {name: ours[name] for name in DRAWN} == {name: theirs[name] for name in DRAWN}


def test_an_export_answers_other_prompts(generate, tiny_job, trained: Path, output: Path) -> None:
    """Without training data, ground truths, or a reward function that could be loaded."""
    prompts = output.parent / "prompts.jsonl"
    lines = [{"prompt": [{"role": "user", "content": f"{n}+1"}], "data_source": "x"} for n in "123"]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = {"train": [{"path": "/gone.parquet"}], "maxPromptTokens": 64, "maxResponseTokens": 8}
    gone = [{"function": "letters", "source": {"path": "/gone.py"}}]
    manifest = ppo(tiny_job, data=data, rewards=gone)
    generate(manifest, output, "--data", prompts, "--model", trained / "export").succeed()
    written = pq.read_table(output / "responses.parquet")
    assert written.column_names == ["data_source", "prompt", "responses"]
    assert [len(responses) for responses in written["responses"].to_pylist()] == [3, 3, 3]


def test_every_number_of_a_run_comes_back_from_its_rows(trained: Path) -> None:
    validations = [numbers(record) for record in run_folders.metrics(trained)]
    assert len(validations) == 3
    assert len(validations[0]) > 20
    for place in (trained, trained / "validation", trained / "validation" / "step-*"):
        assert evaluated(place) == validations
    assert evaluated(trained, "--kept") == validations
    assert evaluated(trained / FIRST) == validations[:1]


@pytest.mark.long
def test_scores_that_are_never_said_twice_are_taken_from_the_rows(start, tiny_job, output: Path):
    rewards = tiny_jobs.reward_at(output.parent / "mixed.py", MIXED)
    start(tiny_job(rollout=ROLLOUT, steps={"total": 1}, rewards=rewards), output).succeed()
    validations = [numbers(record) for record in run_folders.metrics(output)]
    assert any("/maj@3/" in name for name in validations[0])
    assert evaluated(output, "--kept") == validations
    assert evaluated(output) != validations


@pytest.mark.long
def test_conversations_with_tools(generate, start, tmp_path: Path) -> None:
    """A tool whose answers are those of its arguments: turns, scores and numbers are the same."""
    folder = tmp_path / "talking"
    folder.mkdir()
    agent_jobs.make_talking_folder(folder)
    tools = agent_jobs.write_tools(folder, 0.0)
    source = {"path": str(tools), "function": "add"}
    sections = agent_jobs.talking(folder, source)
    sections |= {"steps": {"total": 1}, "checkpoint": {}}
    sections["rollout"] |= {"validation": {"samples": 2, "temperature": 1.0}}
    manifest = tiny_jobs.write_manifest(tmp_path, folder, **sections)
    start(manifest, tmp_path / "trains").succeed()
    generate(manifest, tmp_path / "run").succeed()
    ours, theirs = rows(tmp_path / "run" / FIRST), rows(tmp_path / "trains" / FIRST)
    names = (*DRAWN, "figures")
    assert {name: ours[name] for name in names} == {name: theirs[name] for name in names}
    validations = [numbers(record) for record in run_folders.metrics(tmp_path / "trains")]
    assert validations[0]["val-aux/num_turns/max"] > 2
    assert evaluated(tmp_path / "trains") == validations
    assert evaluated(tmp_path / "run") == validations[:1]


KILLS = (
    "rpc.generate.answer.before@1=kill",
    "rpc.write_rows.answer.after@1=kill",
    "responses.write.after@1=kill",
    "responses.rename.before@1=kill",
    "responses.rename.after@1=kill",
)


def test_killed_anywhere_it_leaves_the_same(generate, tiny_job, trained, output, once):
    manifest = ppo(tiny_job)
    generate(manifest, output, **job_points.armed(once, *KILLS)).succeed()
    assert job_points.fired(once) == {point.partition("@")[0] for point in KILLS}
    written = pq.read_table(output / "responses.parquet")["responses"].to_pylist()
    assert [one for responses in written for one in responses] == rows(trained / FIRST)["response"]


def test_stopped_at_once_nothing_is_half_written(generate, tiny_job, output: Path, once: Path):
    manifest = ppo(tiny_job)
    stops = job_points.armed(once, "responses.rename.before@1=stop")
    run = generate(manifest, output, **stops)
    run.wait_until(lambda: bool(list(once.iterdir())), "the file was written")
    for _ in range(2):
        os.kill(run.process.pid, signal.SIGINT)
    assert run.wait() == 130
    assert not (output / "responses.parquet").exists()
    generate(manifest, output).succeed()
    assert (output / "responses.parquet").exists()


def test_the_run_of_a_job_that_trains_is_left_alone(generate, tiny_job, trained: Path) -> None:
    before = sorted(trained.rglob("*"))
    run = generate(ppo(tiny_job), trained)
    assert run.wait() == 2
    assert any("generateOnly" in line for line in run.lines)
    assert sorted(trained.rglob("*")) == before
