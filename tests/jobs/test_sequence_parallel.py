"""Ranks that share the tokens of a micro-batch: the numbers of one rank, and kills lose nothing."""

from pathlib import Path

import job_points
import pytest
import run_folders
import tiny_jobs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]

PATIENT = {"timeouts": {"livenessSeconds": 60}}
SHORT = {"steps": {"total": 3, "validateEvery": 3}}
TWO = {"ranksPerReplica": 2, "parallelism": {"sequence": 2}}
"""One coordinate; the tiny model has two query heads and one key head."""
TWO_BY_TWO = {"ranksPerReplica": 4, "parallelism": {"sequence": 2}}


@pytest.mark.parametrize(
    "roles",
    [
        pytest.param({"actorRollout": TWO_BY_TWO}, id="beside"),
        pytest.param(
            {
                "actorRollout": TWO,
                **{
                    role: {"colocateWith": "none", **TWO}
                    for role in ("critic", "reference", "rewardModel")
                },
            },
            id="apart",
        ),
    ],
)
def test_ranks_that_share_tokens_of_four_models_give_the_numbers_of_one(
    finished, even_folder, roles
):
    """A mini-batch has two prompts, as many as there are coordinates, and micro-batches are cut."""
    job = {
        **tiny_jobs.PPO,
        **SHORT,
        "training": {"autocast": "none", "microBatchTokens": 40},
        "rewards": [],
        "rewardModel": {"path": str(even_folder / "classifier"), "dtype": "float32"},
    }
    one, shared = finished("one", **job), finished("shared", **job, roles=roles)
    run_folders.assert_close(shared, one)
    first, second = (run_folders.metrics(output)[-1] for output in (one, shared))
    for name in ("actor/grad_norm", "critic/grad_norm"):
        assert second[name] == pytest.approx(first[name], rel=1e-5)


def test_ranks_that_share_tokens_are_killed_and_leave_what_undisturbed_ones_do(
    run_through, tiny_folder, tiny_job, tmp_path, output
):
    """With dropout, so that random states count too."""
    job = {
        **PATIENT,
        "steps": {"total": 6, "validateEvery": 3},
        "recovery": {"restartsWithoutProgress": 100},
        "roles": {"actorRollout": TWO},
    }
    calm = tmp_path / "calm"
    calm.mkdir()
    undisturbed = tiny_jobs.undisturbed_result(calm, tiny_folder, **job)
    points = [
        "rpc.update.answer.before@3=kill",
        "rpc.update.answer.after@5=kill",
        "checkpoint.shard.write.middle@2=kill",
        "rpc.save_shards.answer.before@2=kill_group",  # the whole job
    ]
    run_through(tiny_job(**job), output, *points, seconds=600)
    assert run_folders.result(output) == undisturbed


def test_a_run_goes_on_where_other_ranks_share_tokens(
    start, finished, even_folder, tmp_path: Path, output, once
):
    """Equal to rounding, whichever layout has written the checkpoint; the log says so."""
    job = {**PATIENT, "steps": {"total": 6}, "checkpoint": {"every": 2}}
    whole = finished("whole", **job)

    def manifest(**roles: object) -> Path:
        return tiny_jobs.write_manifest(tmp_path, even_folder, **job, roles=roles)

    for point, pods in (("begin@3", TWO), ("recorded@3", {"ranksPerReplica": 2})):
        armed = job_points.armed(once, f"controller.step.{point}=kill_group")
        run = start(manifest(actorRollout=pods), output, **armed)
        assert run.wait(600) == 3, run.logs()
    start(manifest(actorRollout=TWO), output).succeed(600)
    run_folders.assert_close(output, whole)
    log = (output / "logs" / "tiny-controller-0.log").read_text()
    for change in ("1 -> 2", "2 -> 1"):
        assert f"spec.roles.actorRollout.parallelism.dataShard: {change}: from here on" in log
