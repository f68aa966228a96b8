"""Killed anywhere, the job ends with the numbers of a job that nobody disturbed.

Every durable act and every answer is a failpoint (`failpoints.all_points`). A job is run with many
of them armed, each fires once; the processes that it kills come back, and what the job leaves must
be bit-equal to what an undisturbed one leaves.
"""

import os
import shutil
import signal
from pathlib import Path

import job_points
import msgspec
import pytest
import run_folders
import tiny_jobs
import torch
from safetensors.torch import load_file, save_file
from tiers import first_in_test

from ppojob_trainer.checkpoint import manifest
from ppojob_trainer.durable import sha256_of

pytestmark = pytest.mark.timeout(1_800)

RECOVERY = {"restartsWithoutProgress": 1000}

GROUPS = {
    "records": ("controller.", "journal.", "metrics.", "summary.", "rows."),
    "checkpoints": ("checkpoint.", "export."),
    "answers": ("rpc.",),
}


def arm(once: Path, points: list[str], action: str = "kill", nth: int = 1) -> dict[str, str]:
    return job_points.armed(once, *(f"{point}@{nth}={action}" for point in points))


@pytest.mark.parametrize("name", first_in_test(list(GROUPS), "checkpoints"))
def test_killed_at_every_point(name, start, tiny_job, output: Path, undisturbed, once):
    points = [point for point in job_points.of_a_small_job() if point.startswith(GROUPS[name])]
    assert len(points) >= 20, points
    # A checkpoint after every step: a kill behind the rename of one leaves its last acts to the
    # next.
    job = tiny_job(recovery=RECOVERY, checkpoint={"every": 1})
    run = start(job, output, **arm(once, points))
    assert run.wait(1_700) == 0, run.logs()
    silent = set(points) - job_points.fired(once)
    missed = {point for point in silent if not point.startswith(job_points.ONLY_ON_CUT)}
    assert not missed, f"never hit: {sorted(missed)}"
    assert run_folders.result(output) == undisturbed
    run_folders.wait_until_gone(output)


def test_everything_killed_at_once_and_the_same_command_again(
    run_through_lives, tiny_job, output, undisturbed
):
    points = (
        "rpc.update.answer.before@3",
        "checkpoint.shard.write.middle@2",
        "checkpoint.seal.rename.before@2",
        "checkpoint.seal.rename.after@2",
        "journal.write.after@8",
        "export.rename.before@1",
    )
    run_through_lives(tiny_job(recovery=RECOVERY), output, *points)
    assert run_folders.result(output) == undisturbed


def test_a_stopped_rank_is_noticed_and_replaced(run_through, tiny_job, output: Path, undisturbed):
    job = tiny_job(recovery=RECOVERY, timeouts={"livenessSeconds": 10})
    points = ("rpc.update.answer.before@2=stop", "rpc.score.answer.before@2=stop")
    run = run_through(job, output, *points)
    assert run_folders.result(output) == undisturbed
    assert "sent no heartbeat for 10 s (spec.timeouts.livenessSeconds)" in run.logs()


def test_a_killed_reward_worker_or_controller_costs_no_step(
    run_through, tiny_job, output: Path, undisturbed
):
    points = ("controller.step.computed@3=kill", "controller.step.recorded@3=kill")
    run_through(tiny_job(recovery=RECOVERY), output, "rpc.score.answer.before@3=kill", *points)
    journal = (output / "checkpoints" / "journal.jsonl").read_text()
    assert journal.count('"controller_started"') == 3
    assert run_folders.rewinds(output) == 1, "only the start counts as one"
    assert run_folders.result(output) == undisturbed


@pytest.mark.long
def test_a_request_to_end_waits_for_the_step_that_a_killed_controller_has_begun(
    start, tiny_job, output: Path, undisturbed, once
):
    """Its checkpoint is of a whole step: ranks had done part of the next one."""
    job = tiny_job(recovery=RECOVERY, checkpoint={"every": 100})
    points = ("controller.step.recorded@3=kill", "metrics.cut.truncate.before@1=stop")
    run = start(job, output, **job_points.armed(once, *points))
    run.interrupt_where_it_stopped()
    assert run.wait() == 130, run.logs()
    assert sorted(marker.name for marker in once.iterdir()) == sorted(points)
    start(job, output).succeed()
    assert run_folders.rewinds(output) == 2, "it went on from the checkpoint of its end"
    assert run_folders.result(output) == undisturbed


def test_a_damaged_checkpoint_is_refused_by_name_and_the_one_before_is_used(
    start, tiny_job, output, undisturbed, once
):
    job = tiny_job(recovery=RECOVERY)
    run = start(job, output, **arm(once, ["controller.step.journaled"], "kill_group", 6))
    assert run.wait() == 3
    assert job_points.fired(once) == {"controller.step.journaled"}
    newest = sorted((output / "checkpoints").glob("step-*"))[-1]
    shard = newest / "actorRollout" / "rank-00000" / "optimizer.safetensors"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    points = ["checkpoint.replace.rename.before", "checkpoint.replace.rename.after"]
    again = start(job, output, **arm(once, points)).succeed()
    assert set(points) <= job_points.fired(once)
    damaged = f"checkpoints/{newest.name}/actorRollout/rank-00000/optimizer.safetensors: "
    (told,) = [line for line in again.lines if line.startswith(damaged)]
    assert told.endswith(": this checkpoint is not used; the job goes on from step-000002")
    assert run_folders.result(output) == undisturbed


def test_a_job_that_is_killed_again_and_again_fails_and_says_so(start, tiny_job, output, once):
    job = tiny_job(recovery={"restartsWithoutProgress": 1})
    environment = arm(once, ["rpc.generate.answer.before"])
    environment.pop("PPOJOB_FAILPOINT_ONCE")
    run = start(job, output, **environment)
    assert run.wait() == 3
    assert any("spec.recovery.restartsWithoutProgress allows 1" in line for line in run.lines)
    run_folders.wait_until_gone(output)


def forget_cursor(checkpoint: Path) -> None:
    """Move the data cursor of a checkpoint back to the beginning."""
    path = checkpoint / "manifest.json"
    found = manifest.decode(path.read_bytes(), path.name)
    data = msgspec.structs.replace(found.progress.data, epoch=0, cursor=0)
    progress = msgspec.structs.replace(found.progress, data=data)
    path.write_bytes(manifest.encode(msgspec.structs.replace(found, progress=progress)))


def forget_optimizer(checkpoint: Path) -> None:
    """Zero the moments of the optimizer, as if they had not been saved."""
    (shard,) = checkpoint.glob("*/rank-00000/optimizer.safetensors")
    tensors = load_file(shard)
    save_file({n: t if t.ndim == 0 else torch.zeros_like(t) for n, t in tensors.items()}, shard)
    list_again(checkpoint)


def forget_random_state(checkpoint: Path) -> None:
    """Put the random state of a fresh process in place of the saved one."""
    (shard,) = checkpoint.glob("*/rank-00000/rng.safetensors")
    save_file({"torch": torch.Generator().manual_seed(12345).get_state()}, shard)
    list_again(checkpoint)


def list_again(checkpoint: Path) -> None:
    path = checkpoint / "manifest.json"
    found = manifest.decode(path.read_bytes(), path.name)
    files = []
    for entry in found.files:
        size_bytes, sha256 = sha256_of(checkpoint / entry.path)
        files.append(msgspec.structs.replace(entry, size_bytes=size_bytes, sha256=sha256))
    path.write_bytes(manifest.encode(msgspec.structs.replace(found, files=tuple(files))))


@pytest.fixture(scope="module")
def killed_behind_a_checkpoint(tiny_folder: Path, tmp_path_factory, fork_server: None) -> Path:
    """The run folder of a job that was killed with everything, in the step behind its second."""
    folder = tmp_path_factory.mktemp("killed")
    job = tiny_jobs.write_manifest(folder, tiny_folder, recovery=RECOVERY)
    armed = arm(folder / "once", ["rpc.update.answer.before"], "kill_group", 11)
    tiny_jobs.ppojob(folder, "run", job, "--output", folder / "run", status=3, **armed)
    run_folders.wait_until_gone(folder / "run")
    return folder / "run"


@pytest.mark.parametrize(
    "forget", first_in_test([forget_optimizer, forget_random_state, forget_cursor])
)
def test_leaving_anything_out_of_the_checkpoint_is_noticed(
    forget, start, tiny_job, output, undisturbed, killed_behind_a_checkpoint
):
    """The negative control: these tests would notice a checkpoint without one of its parts."""
    job = tiny_job(recovery=RECOVERY)
    shutil.copytree(killed_behind_a_checkpoint, output, symlinks=True)
    forget(output / "checkpoints" / "step-000004")
    start(job, output).succeed()
    assert run_folders.result(output)["metrics"] != undisturbed["metrics"]


def test_a_signal_from_outside_at_any_moment(start, tiny_job, output: Path, undisturbed):
    """The rank, the controller, a child, and at last the fork server with its ranks."""
    job = tiny_job(recovery=RECOVERY)
    run = start(job, output, PPOJOB_FORK_SERVER="")  # one of its own
    for step, role, kind in (
        (1, "actor-rollout", "rank"),
        (2, "controller", "controller"),
        (3, "reward", "child"),
        (4, "reward", "rank"),
    ):
        run.wait_for_step(step)
        pid = run_folders.rank_pids(output, role).get(kind)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
    run.wait_for_step(5)
    os.kill(run_folders.fork_server_of(output), signal.SIGKILL)
    assert run.wait() == 0, run.logs()
    assert "fork server: it has ended" in run.logs()
    assert run_folders.result(output) == undisturbed


@pytest.mark.parametrize("killed", first_in_test(["supervise", "supervisor-server"]))
def test_a_job_that_loses_a_supervisor_ends_and_goes_on_when_told(
    killed, start, tiny_job, output: Path, undisturbed
):
    """Nobody is left to start one again; what forks them is lost with all of them."""
    own = {"PPOJOB_FORK_SERVER": ""} if killed == "supervisor-server" else {}
    run = start(tiny_job(), output, **own)
    run.wait_for_step(2)
    pids = run_folders.processes_of(output)
    os.kill(next(pid for pid, line in pids.items() if f" {killed} " in line), signal.SIGKILL)
    assert run.wait() == 3
    assert any(": it ended" in line for line in run.lines), run.lines
    run_folders.wait_until_gone(output)
    start(tiny_job(), output).succeed()
    assert run_folders.result(output) == undisturbed


@pytest.mark.vllm
def test_killed_with_the_real_rollout_engine(start, run_through, tiny_job, tmp_path: Path):
    """Bit-equal, although vLLM is loaded many times."""
    changes = {
        "rollout": {"engine": "vllm", "kvCacheGib": 0.25},
        "training": {"autocast": "auto"},
        "steps": {"total": 4, "validateEvery": 2},
    }
    job = tiny_job(**changes)
    whole, disturbed = tmp_path / "whole", tmp_path / "disturbed"
    start(job, whole).succeed()
    points = (
        "rpc.generate.answer.before@3=kill",  # a rank, with a response phase lost
        "controller.step.computed@2=kill",
        "rpc.save_shards.answer.after@1=kill_group",  # everything, in the middle of a checkpoint
    )
    run_through(job, disturbed, *points, seconds=600)
    assert run_folders.result(disturbed) == run_folders.result(whole)
