import os
import signal
from collections.abc import Iterator
from pathlib import Path

import job_points
import pytest
import run_folders
from small_disks import SmallDisk, small_disk
from tiers import first_in_test

from ppojob_trainer.checkpoint.store import incomplete

LESS_THAN_A_CHECKPOINT = 600 << 10
"""Bytes; a checkpoint of the tiny model has 680 KiB, rows and logs of ten steps a fourth."""


SECTIONS = {"timeouts": {"livenessSeconds": 500}}
"""A controller that has stopped itself is left alone."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", 32) as made:
        yield made


@pytest.mark.parametrize("background", first_in_test([True, False]))
def test_a_disk_that_is_full_for_a_while(background, disk, start, tiny_job, once, undisturbed):
    points = ("controller.step.begin@2=stop", "controller.step.begin@10=stop")
    output, ballast = disk.folder / "run", disk.folder / "ballast"
    job = tiny_job(**SECTIONS, checkpoint={"every": 2, "background": background})
    run = start(job, output, **job_points.armed(once, *points))
    controller = run.wait_until_stopped()
    disk.fill(ballast, leave_bytes=LESS_THAN_A_CHECKPOINT)
    os.kill(controller, signal.SIGCONT)
    run.wait_for_step(2)
    assert run.wait_until_stopped() == controller
    checkpoints = output / "checkpoints"
    assert run_folders.metrics(output)[-1]["step"] == 9
    assert not list(checkpoints.glob("step-*"))
    log = (output / "logs" / "tiny-controller-0.log").read_text()
    assert [f"no checkpoint after step {step}: " in log for step in (2, 4, 6)] == [True] * 3
    if not background:  # else the last may be under way
        assert "no checkpoint after step 8: " in log
        assert incomplete(checkpoints) == []
    assert "No space left on device" in log
    ballast.unlink()
    os.kill(controller, signal.SIGCONT)
    assert run.wait() == 0, run.logs()
    assert len(list(checkpoints.glob("step-*"))) == 2
    assert run_folders.result(output) == undisturbed


def test_a_job_that_ends_for_want_of_space_goes_on_by_the_same_command(
    disk, start, tiny_job, once, undisturbed
):
    output, ballast = disk.folder / "run", disk.folder / "ballast"
    environment = job_points.armed(once, "controller.step.begin@6=stop")
    run = start(tiny_job(**SECTIONS), output, **environment)
    controller = run.wait_until_stopped()
    disk.fill(ballast, leave_bytes=LESS_THAN_A_CHECKPOINT)
    os.kill(controller, signal.SIGCONT)
    run.process.send_signal(signal.SIGINT)  # the last checkpoint is one that a job must have
    assert run.wait() == 3, run.logs()
    assert any("No space left on device" in line for line in run.lines), run.lines
    assert incomplete(output / "checkpoints") == []
    ballast.unlink()
    start(tiny_job(**SECTIONS), output).succeed()
    assert run_folders.result(output) == undisturbed
