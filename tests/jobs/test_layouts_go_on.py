from pathlib import Path

import job_points
import pytest
import run_folders
import tiny_jobs
from _pytest.mark.structures import ParameterSet

pytestmark = pytest.mark.timeout(1_800)

PATIENT = {"timeouts": {"livenessSeconds": 60}}
LAYOUTS = {
    "copies": {"dataShard": 1},
    "sequence": {"sequence": 2},
    "tensor": {"tensor": 2},
    "pipeline": {"pipeline": 2},
}
PODS = {name: {"ranksPerReplica": 2, "parallelism": one} for name, one in LAYOUTS.items()}


def layouts_of(*always: str) -> list[ParameterSet]:
    """All layouts, of which `make test` takes some and `make test-long` the others."""
    long = {name: () if name in always else (pytest.mark.long,) for name in PODS}
    return [pytest.param(name, marks=marks) for name, marks in long.items()]


@pytest.mark.long
@pytest.mark.parametrize("layout", layouts_of("tensor"))
def test_killed_ranks_leave_what_undisturbed_ones_do(
    run_through, alone, tiny_folder_of, tmp_path, output, layout
):
    """With dropout, so that random states count too, the whole KL in the loss, and tiles."""
    folder = tiny_folder_of(0.1)
    algorithm = tiny_jobs.make_manifest(folder)["spec"]["algorithm"]
    job = {
        "algorithm": {**algorithm, "kl": {"in": "loss", "estimator": "full"}},
        **PATIENT,
        "training": {"autocast": "none", "mlpTileTokens": 16},
        "steps": {"total": 6, "validateEvery": 3},
        "roles": {"actorRollout": PODS[layout]},
    }
    undisturbed = run_folders.result(alone(folder, **job))
    points = [
        "rpc.update.answer.before@3=kill",
        "rpc.update.answer.after@5=kill",
        "rpc.restore.answer.before@1=kill",
        "checkpoint.shard.write.middle@2=kill",
        "rpc.save_shards.answer.before@2=kill_group",  # the whole job
    ]
    run_through(tiny_jobs.write_manifest(tmp_path, folder, **job), output, *points, seconds=600)
    assert run_folders.result(output) == undisturbed


@pytest.mark.parametrize("layout", layouts_of("pipeline"))
def test_a_run_goes_on_under_another_layout_and_back(
    start, finished, tiny_folder_of, tmp_path: Path, output, once, layout
):
    """Equal to rounding, and the log says so; in the middle with other micro-batches and tiles."""
    folder = tiny_folder_of(0.0)
    job = {**PATIENT, "steps": {"total": 6}, "checkpoint": {"every": 2}}
    whole = finished("whole", folder, **job)

    def manifest(pods: object, **training: object) -> Path:
        changes = {**job, "training": {"autocast": "none", **training}}
        return tiny_jobs.write_manifest(tmp_path, folder, **changes, roles={"actorRollout": pods})

    small = {
        "microBatchTokens": 40,
        "logprobChunkTokens": 0,
        "mlpTileTokens": 16,
        "activationCheckpointing": True,
    }
    for point, pods, training in (
        ("begin@3", PODS[layout], {}),
        ("recorded@3", {"ranksPerReplica": 2}, small),
    ):
        armed = job_points.armed(once, f"controller.step.{point}=kill_group")
        run = start(manifest(pods, **training), output, **armed)
        assert run.wait(600) == 3, run.logs()
    start(manifest(PODS[layout]), output).succeed(600)
    run_folders.assert_close(output, whole)
    log = (output / "logs" / "tiny-controller-0.log").read_text()
    for change in ("1 -> 2", "2 -> 1"):
        assert f"spec.roles.actorRollout.parallelism.dataShard: {change}: the next steps" in log


@pytest.mark.long
def test_roles_that_move_change_no_bit(start, alone, even_folder, tmp_path, output, once):
    """Into pods of their own and back, engines too; without dropout, whose stream models share."""
    job = {**tiny_jobs.PPO, **PATIENT, "steps": {"total": 4}, "checkpoint": {"every": 1}}
    apart = {**tiny_jobs.OWN_PODS, "rollout": {}}
    for point, roles in (("begin@2", {}), ("recorded@2", apart)):
        armed = job_points.armed(once, f"controller.step.{point}=kill_group")
        manifest = tiny_jobs.write_manifest(tmp_path, even_folder, **job, roles=roles)
        run = start(manifest, output, **armed)
        assert run.wait(600) == 3, run.logs()
        run_folders.wait_until_gone(output)
    start(tiny_jobs.write_manifest(tmp_path, even_folder, **job), output).succeed(600)
    assert run_folders.result(output) == run_folders.result(alone(even_folder, **job))
    log = (output / "logs" / "tiny-controller-0.log").read_text()
    for moved in ('"actorRollout" -> "none"', '"none" -> "actorRollout"'):
        assert f"spec.roles.critic.colocateWith: {moved}: the next steps" in log
