import json
from pathlib import Path

import job_points
import pytest
import run_folders
import tiny_jobs

pytestmark = pytest.mark.timeout(1_800)

SECTIONS = {
    "checkpoint": {"every": 1, "background": True},
    "recovery": {"restartsWithoutProgress": 1000},
}


def saved(output: Path) -> list[int]:
    """The steps whose checkpoints were complete at any time, in their order."""
    lines = (output / "checkpoints" / "journal.jsonl").read_text().splitlines()
    events = map(json.loads, lines)
    return [event["step"] for event in events if event["event"] == "commit_sealed"]


@pytest.mark.long
def test_killed_at_every_point(start, tiny_job, output: Path, undisturbed, once):
    mine = ("checkpoint.", "journal.", "rpc.save_shards.", "rpc.update.")
    points = [point for point in job_points.of_a_small_job() if point.startswith(mine)]
    assert len(points) >= 30, points
    armed = job_points.armed(once, *(f"{point}@1=kill" for point in points))
    run = start(tiny_job(**SECTIONS), output, **armed)
    assert run.wait(1_700) == 0, run.logs()
    assert set(points) <= job_points.fired(once)
    assert run_folders.result(output) == undisturbed
    run_folders.wait_until_gone(output)


def test_everything_killed_at_once_and_the_same_command_again(
    run_through_lives, tiny_job, output: Path, undisturbed
):
    """Before, while and after a checkpoint is written; by ranks, and by the controller."""
    points = (
        "rpc.save_shards.answer.before@3",
        "checkpoint.shard.write.middle@4",
        "checkpoint.shard.fsync.after@9",
        "controller.step.computed@3",
        "checkpoint.seal.rename.before@2",
        "checkpoint.seal.rename.after@2",
    )
    run_through_lives(tiny_job(**SECTIONS), output, *points)
    assert run_folders.result(output) == undisturbed


def test_a_controller_that_takes_over_completes_what_was_begun(
    run_through, tiny_job, output: Path, undisturbed
):
    points = ("controller.step.computed@3=kill", "controller.step.recorded@4=kill")
    run_through(tiny_job(**SECTIONS), output, *points)
    assert run_folders.rewinds(output) == 1
    assert saved(output) == list(range(1, 13))
    assert run_folders.result(output) == undisturbed


def test_a_request_to_end_waits_for_what_is_written(start, tiny_job, output, undisturbed, once):
    points = ("controller.step.begin@4=stop",)
    run = start(tiny_job(**SECTIONS), output, **job_points.armed(once, *points))
    run.interrupt_where_it_stopped()
    assert run.wait() == 130, run.logs()
    assert saved(output) == [1, 2, 3, 4]
    assert sorted(path.name for path in (output / "checkpoints").glob(".step-*")) == []
    start(tiny_job(**SECTIONS), output).succeed()
    assert run_folders.result(output) == undisturbed


@pytest.mark.long
def test_one_of_several_roles_is_lost_while_they_write(run_through, tiny_job, output, alone):
    """Ranks of the policy and a critic in pods of its own; nobody else loses its process."""
    job = {
        **tiny_jobs.PPO,
        "roles": {**tiny_jobs.OWN_PODS, "actorRollout": {"ranksPerReplica": 2}},
        "steps": {"total": 5},
        "timeouts": {"livenessSeconds": 60},
    }
    points = (
        "rpc.save_shards.answer.after@1=kill",
        "checkpoint.shard.write.middle@3=kill",
        "rpc.score.answer.before@4=kill",
        "controller.step.computed@2=kill",
    )
    run_through(tiny_job(**job, **SECTIONS), output, *points, seconds=900)
    calm = alone(**job, checkpoint={"every": 1}, recovery=SECTIONS["recovery"])
    assert run_folders.result(output) == run_folders.result(calm)
