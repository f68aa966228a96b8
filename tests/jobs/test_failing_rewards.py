import json
from collections.abc import Callable
from pathlib import Path

import job_points
import pytest
import run_folders
import tiny_jobs
from tiers import first_in_test

STEPS = {"total": 4, "validateFirst": False, "validateEvery": None, "validateLast": True}
OF_A_STEP = 16


def failing_from(path: Path, call: int) -> str:
    """A function that counts its calls, beside its file, and raises from one of them on."""
    calls = path.with_suffix(".calls")
    return tiny_jobs.REWARD.replace(
        '"""\n',
        f'"""\n    with open({str(calls)!r}, "a+") as calls:\n        calls.write("x")\n'
        f"        if calls.tell() > {call}:\n"
        '            raise KeyError("no " + ground_truth)\n',
    )


@pytest.fixture(scope="module")
def undisturbed(alone: Callable[..., Path]) -> dict[str, object]:
    return run_folders.result(alone(steps=STEPS))


@pytest.mark.parametrize(
    ("call", "saved", "point"),
    first_in_test(
        [
            (2 * OF_A_STEP, 2, "checkpoint.seal.rename.before@1=kill"),  # in step 3
            (4 * OF_A_STEP, 4, "checkpoint.seal.rename.after@1=kill"),  # in step 4's validation
        ]
    ),
)
def test_what_was_done_is_saved(
    call, saved, point, start, tiny_job, tmp_path, undisturbed, output, once
):
    """Also where the controller is killed in that very checkpoint; the mended job ends as any."""
    path = tmp_path / "letters.py"
    rewards = tiny_jobs.reward_at(path, failing_from(path, call))
    job = tiny_job(rewards=rewards, steps=STEPS, checkpoint={"every": None})
    run = start(job, output, **job_points.armed(once, point))
    assert run.wait() == 3, run.logs()
    assert job_points.fired(once) == {point.partition("@")[0]}
    (failed,) = (at for at, line in enumerate(run.lines) if line.startswith("failed: "))
    assert f"it raised at {path}:7 letters" in run.lines[failed]
    assert f"step {saved} is saved" in run.lines[failed + 1]
    folders = [folder.name for folder in (output / "checkpoints").glob("step-*")]
    assert folders == [f"step-{saved:06d}"]

    path.write_text(tiny_jobs.REWARD)
    # The next step, or the validation that was owed, has its line of metrics and is done anew.
    armed = job_points.armed(once, "controller.step.recorded@1=kill")
    again = start(job, output, **armed).succeed()
    differs = f"{path}: its content differs from that of step-{saved:06d}"
    assert sum(line.startswith(differs) for line in again.lines) == 1
    assert "controller.step.recorded" in job_points.fired(once)
    assert run_folders.result(output) == undisturbed
    assert json.loads((output / "summary.json").read_text())["validation"]["last"]
