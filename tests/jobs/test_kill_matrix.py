"""The whole kill matrix, hours of it (`make test-long`): every point, every victim, real vLLM."""

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import job_points
import pytest
import run_folders

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

RECOVERY = {"restartsWithoutProgress": 1000}
CHANGES = {
    "rollout": {"engine": "vllm", "kvCacheGib": 0.25},
    "training": {"autocast": "auto"},
    "steps": {"total": 6, "validateEvery": 3},
    "recovery": RECOVERY,
    "timeouts": {"livenessSeconds": 10},
}
VICTIMS = (
    ("actor-rollout", "rank", signal.SIGKILL),
    ("actor-rollout", "rank", signal.SIGSTOP),
    ("controller", "controller", signal.SIGKILL),
    ("reward", "rank", signal.SIGKILL),
    ("reward", "rank", signal.SIGSTOP),
    ("reward", "child", signal.SIGKILL),
    ("everything", "", signal.SIGKILL),
)


@pytest.fixture(scope="session")
def undisturbed(alone: Callable[..., Path]) -> dict[str, object]:
    return run_folders.result(alone(**CHANGES))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test a point; naming them loads torch, which nobody should pay who deselects them."""
    if "point" in metafunc.fixturenames:
        marks = metafunc.config.option.markexpr
        is_wanted = "long" in marks and "not long" not in marks
        metafunc.parametrize("point", job_points.of_a_small_job() if is_wanted else ["deselected"])


@pytest.mark.parametrize("action", ["kill", "kill_group"])
def test_killed_at_a_point(point, action, start, tiny_job, tmp_path: Path, undisturbed):
    """At its second hit in a process; at the first where a process hits it only once."""
    for nth in (2, 1):
        output, once = tmp_path / f"run-{nth}", tmp_path / f"once-{nth}"
        once.mkdir()
        job = tiny_job(**CHANGES)
        run = start(job, output, **job_points.armed(once, f"{point}@{nth}={action}"))
        status = run.wait(900)
        if status != 0:
            assert action == "kill_group", run.logs()
            start(job, output).succeed(900)
        assert run_folders.result(output) == undisturbed
        run_folders.wait_until_gone(output)
        if job_points.fired(once):
            return
    assert point.startswith(job_points.ONLY_ON_CUT), "never hit"


@pytest.mark.parametrize("seed", range(50))
def test_killed_at_a_random_moment(seed, start, tiny_job, output: Path, undisturbed):
    """One or two signals at random moments, also while the job recovers from the first."""
    draw = random.Random(seed)
    job = tiny_job(**CHANGES)
    run = start(job, output)
    for _ in range(draw.choice((1, 2))):
        time.sleep(draw.uniform(2.0, 60.0))
        role, kind, number = draw.choice(VICTIMS)
        if role == "everything":
            run_folders.kill_all(output)
        elif (pid := run_folders.rank_pids(output, role).get(kind)) is not None:
            os.kill(pid, number)
    while run.wait(900) != 0:
        run = start(job, output)
    assert run_folders.result(output) == undisturbed
    run_folders.wait_until_gone(output)
