"""Ranks that hold copies of a model (HSDP): the numbers of one rank, and nothing lost by kills."""

from pathlib import Path

import job_points
import pytest
import run_folders
import tiny_jobs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]

PATIENT = {"timeouts": {"livenessSeconds": 60}}
SHORT = {"steps": {"total": 3, "validateEvery": 3}}
TWO_COPIES = {"ranksPerReplica": 2, "parallelism": {"dataShard": 1}}
TWO_BY_TWO = {"ranksPerReplica": 4, "parallelism": {"dataShard": 2}}
WHOLE_BATCH = {
    **tiny_jobs.PPO["algorithm"],
    "miniBatchPrompts": 4,
    "shuffleMiniBatches": False,
}
"""A mini-batch has a prompt for each of four ranks."""


@pytest.mark.parametrize(
    "roles",
    [
        pytest.param({"actorRollout": TWO_BY_TWO}, id="beside"),
        pytest.param(
            {
                "actorRollout": TWO_COPIES,
                **{
                    role: {"colocateWith": "none", **TWO_COPIES}
                    for role in ("critic", "reference", "rewardModel")
                },
            },
            id="apart",
        ),
    ],
)
def test_copies_of_four_models_give_the_numbers_of_one_rank(finished, even_folder, roles):
    job = {
        **tiny_jobs.PPO,
        **SHORT,
        "algorithm": WHOLE_BATCH,
        "rewards": [],
        "rewardModel": {"path": str(even_folder / "classifier"), "dtype": "float32"},
    }
    one, copies = finished("one", **job), finished("copies", **job, roles=roles)
    run_folders.assert_close(copies, one)
    first, second = (run_folders.metrics(output)[1] for output in (one, copies))
    assert second["critic/grad_norm"] == pytest.approx(first["critic/grad_norm"], rel=1e-5)
    (newest,) = sorted(copies.glob("checkpoints/step-*"))[-1:]
    for role in ("actorRollout", "critic"):
        shards = roles.get(role, roles["actorRollout"])["parallelism"]["dataShard"]
        assert len(list(newest.glob(f"{role}/*/model.safetensors"))) == shards, role


def test_copies_that_are_killed_leave_what_undisturbed_ones_do(
    run_through, tiny_folder, tiny_job, tmp_path, output
):
    """With dropout, so that random states count too."""
    job = {
        **PATIENT,
        "steps": {"total": 6, "validateEvery": 3},
        "recovery": {"restartsWithoutProgress": 100},
        "roles": {"actorRollout": TWO_COPIES},
    }
    calm = tmp_path / "calm"
    calm.mkdir()
    undisturbed = tiny_jobs.undisturbed_result(calm, tiny_folder, **job)
    points = [
        "rpc.update.answer.before@3=kill",
        "rpc.update.answer.after@5=kill",
        "rpc.restore.answer.before@1=kill",
        "checkpoint.shard.write.middle@2=kill",
        "rpc.save_shards.answer.before@2=kill_group",  # the whole job
    ]
    run_through(tiny_job(**job), output, *points, seconds=600)
    assert run_folders.result(output) == undisturbed


def test_a_run_of_copies_goes_on_without_them_and_back(
    start, finished, even_folder, tmp_path: Path, output, once
):
    """Any layout goes on from a checkpoint of any other, equal to rounding; the log says so."""
    job = {**PATIENT, "steps": {"total": 6}, "checkpoint": {"every": 2}}
    whole = finished("whole", **job)

    def go(point: str, **roles: object) -> None:
        manifest = tiny_jobs.write_manifest(tmp_path, even_folder, **job, roles=roles)
        run = start(manifest, output, **job_points.armed(once, f"{point}=kill_group"))
        assert run.wait(600) == 3, run.logs()

    go("controller.step.begin@3", actorRollout=TWO_COPIES)
    go("controller.step.recorded@3", actorRollout={"ranksPerReplica": 2})
    roles = {"actorRollout": TWO_COPIES}
    last = tiny_jobs.write_manifest(tmp_path, even_folder, **job, roles=roles)
    start(last, output).succeed(600)
    run_folders.assert_close(output, whole)
    log = (output / "logs" / "tiny-controller-0.log").read_text()
    for change in ("1 -> 2", "2 -> 1"):
        assert f"spec.roles.actorRollout.parallelism.dataShard: {change}: from here on" in log
