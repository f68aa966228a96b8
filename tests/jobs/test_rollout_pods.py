import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import run_folders
from tiers import first_in_test

pytestmark = pytest.mark.timeout(1_800)

PATIENT = {"timeouts": {"livenessSeconds": 60}}
SHORT = {"steps": {"total": 3, "validateEvery": 2}, "checkpoint": {"every": 1}}
ROUNDS = {
    "type": "remax",
    "promptsPerStep": 4,
    "samplesPerPrompt": 2,
    "miniBatchPrompts": 2,
    "epochs": 2,
    "kl": {"in": "reward", "coefficient": 0.01},
}
"""With greedy responses beside those that are trained on, and a reference."""
ADAPTERS = {"lora": {"rank": 4, "alpha": 8, "targetModules": ["q_proj", "down_proj"]}}


@pytest.fixture(scope="module")
def undisturbed(alone: Callable[..., Path]) -> dict[str, object]:
    return run_folders.result(alone(**PATIENT, **SHORT, algorithm=ROUNDS))


@pytest.mark.long
def test_adapters_alone_reach_engines_whatever_is_killed(
    run_through, finished, tiny_folder, tiny_job, tmp_path
):
    """They compute beside the weights of the folder: what engines beside the trainer draw."""
    common = {
        **PATIENT,
        **SHORT,
        "model": {"path": str(tiny_folder / "model"), **ADAPTERS},
        "optimizer": {"learningRate": 1e-2},
        "rollout": {"engine": "huggingface", "dtype": "float32", "adapters": "beside"},
    }
    train = {"actorRollout": {"ranksPerReplica": 2}}
    beside = finished("beside", tiny_folder, **common, roles=train)
    points = (
        "rpc.generate.answer.before@2=kill",
        "rpc.sync_engine_weights.answer.before@3=kill",
        "rpc.sync_engine_weights.answer.after@1=kill",
        "rpc.update.answer.before@2=kill",
    )
    apart = tmp_path / "apart"
    job = tiny_job(**common, roles={**train, "rollout": {"replicas": 2}})
    run_through(job, apart, *points, seconds=600)
    assert run_folders.result(apart) == run_folders.result(beside)
    run_folders.assert_trained(beside, 3)  # they draw as the trainer says


@pytest.mark.vllm
@pytest.mark.long
@pytest.mark.parametrize("adapters", [None, "beside"])
def test_vllm_apart_gives_the_bits_of_vllm_beside(finished, tiny_folder, adapters):
    engine = {"engine": "vllm", "dtype": "float32", "kvCacheGib": 0.1, "maxSequences": 16}
    common = {**SHORT, "rollout": {**engine, "adapters": adapters}}
    if adapters:
        common["model"] = {"path": str(tiny_folder / "model"), **ADAPTERS}
    beside = finished("beside", tiny_folder, **common)
    apart = finished("apart", tiny_folder, **common, roles={"rollout": {}})
    assert run_folders.result(apart) == run_folders.result(beside)


@pytest.mark.long
def test_numbers_of_ranks_are_free(finished, tiny_folder: Path):
    """Three engines for two ranks that train: the rows of two for two, and near enough of one."""
    common = {**SHORT, "roles": {"actorRollout": {"ranksPerReplica": 2}}}
    beside = finished("beside", tiny_folder, **common)
    common["roles"] = {**common["roles"], "rollout": {"replicas": 3}}
    apart = finished("apart", tiny_folder, **common)
    for step in (1, 2, 3):
        ours, theirs = (run_folders.rows(output, step) for output in (apart, beside))
        assert [row["response_ids"] for row in ours] == [row["response_ids"] for row in theirs]
    for ours, theirs in zip(
        run_folders.without_clock(apart), run_folders.without_clock(beside), strict=True
    ):
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-5, nan_ok=True)


@pytest.mark.parametrize(
    "points",
    first_in_test(
        {
            # Of the engines' ranks, or of those that they speak with: whoever comes first.
            "around the engines": (
                "rpc.generate.answer.before@1=kill",
                "rpc.sync_engine_weights.answer.before@1=kill",
                "rpc.sync_engine_weights.answer.after@2=kill",
                "rpc.transfer_rows.answer.before@2=kill",
                "rpc.transfer_rows.answer.after@1=kill",
                "rpc.open_channel.answer.before@1=kill",
            ),
            "with the others": (
                "rpc.generate.answer.after@2=kill",
                "rpc.transfer_rows.answer.before@3=stop",
                "rpc.sync_engine_weights.answer.before@2=stop",
                "rpc.update.answer.before@3=kill",
                "controller.step.computed@1=kill",
                "controller.step.recorded@2=kill",
            ),
        }
    ),
)
def test_killed_anywhere(run_through, tiny_job, output: Path, undisturbed, points):
    job = {**PATIENT, **SHORT, "algorithm": ROUNDS, "roles": {"rollout": {}}}
    if any(point.endswith("=stop") for point in points):
        job["timeouts"] = {"livenessSeconds": 10}  # each of them costs as much
    run_through(tiny_job(**job), output, *points, seconds=1_500)
    assert run_folders.result(output) == undisturbed


@pytest.mark.long
def test_a_scorer_lost_among_rounds_leaves_the_rows_of_each(
    run_through, finished, tiny_job, tiny_folder, output
):
    """Rounds that are kept, and one that is handed over and not yet scored; with adapters."""
    rounds = {"promptsPerRound": 3, "maxRounds": 4}
    algorithm = {"type": "grpo", "promptsPerStep": 4, "samplesPerPrompt": 2}
    common = {**SHORT, "algorithm": {**algorithm, "dynamicSampling": rounds}}
    common["model"] = {"path": str(tiny_folder / "model"), **ADAPTERS}
    beside = finished("beside", tiny_folder, **common)
    job = tiny_job(**{**PATIENT, **common, "roles": {"rollout": {}}})
    points = ("rpc.score.answer.before@2=kill", "rpc.score.answer.after@3=kill")
    run_through(job, output, *points, seconds=600)
    assert run_folders.result(output) == run_folders.result(beside)


def test_lost_engines_cost_no_step_and_nobody_else(start, tiny_job, output: Path):
    """Killed in the middle of steps: those who train keep their processes and their rows."""
    job = {**PATIENT, "roles": {"rollout": {}}, "steps": {"total": 8}, "checkpoint": {"every": 8}}
    run = start(tiny_job(**job), output)
    run.wait_for_step(1)
    trainer = run_folders.rank_pids(output, "actor-rollout")
    for step in (2, 4, 6):
        run.wait_for_step(step)
        os.kill(run_folders.rank_pids(output, "rollout")["rank"], signal.SIGKILL)
        assert run_folders.rank_pids(output, "actor-rollout") == trainer
    assert run.wait(600) == 0, run.logs()
    journal = (output / "checkpoints" / "journal.jsonl").read_text()
    assert journal.count('"rewound"') == 1, "only the start counts as one"
    assert journal.count('"role":"rollout"') == 4


@pytest.mark.long
def test_those_who_train_lost_while_engines_start_again(start, tiny_job, output, undisturbed):
    """They are not taken for ranks that need no checkpoint: the job goes back as for them alone."""
    job = {**PATIENT, **SHORT, "algorithm": ROUNDS, "roles": {"rollout": {}}}
    run = start(tiny_job(**job), output)
    journal = output / "checkpoints" / "journal.jsonl"

    run.wait_for_step(1)
    controller = run_folders.rank_pids(output, "controller")["controller"]
    trainer = run_folders.rank_pids(output, "actor-rollout")["rank"]
    starts = journal.read_bytes().count(b'"role":"rollout"')
    os.kill(run_folders.rank_pids(output, "rollout")["rank"], signal.SIGKILL)
    while journal.read_bytes().count(b'"role":"rollout"') == starts:
        time.sleep(0.0005)
    # The controller is held where it has begun with the one, and has not heard of the other.
    os.kill(controller, signal.SIGSTOP)
    os.kill(trainer, signal.SIGKILL)
    time.sleep(0.5)
    os.kill(controller, signal.SIGCONT)
    assert run.wait(600) == 0, run.logs()
    assert run_folders.result(output) == undisturbed
