import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from patience import eventually
from pod_plans import pod_plan
from run_folders import is_told_to_end

from ppojob_api import contract
from ppojob_trainer.supervisor.child import Child
from ppojob_trainer.supervisor.main import exit_status
from ppojob_trainer.supervisor.pod import Pod, PodPlan

pytestmark = pytest.mark.processes


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """Controllers stand at it before their first line, until the file is there."""
    (tmp_path / "sitecustomize.py").write_text(
        "import pathlib, time\n"
        "while not pathlib.Path(__file__).with_name('open').exists():\n"
        "    time.sleep(0.01)\n"
    )
    return tmp_path / "open"


@pytest.fixture
def plan(gate: Path) -> PodPlan:
    """Of a pod whose controller ends with status 2, as soon as it has read its environment."""
    path = f"{gate.parent}:{os.environ.get('PYTHONPATH', '')}"
    return pod_plan("controller", environment={**os.environ, "PYTHONPATH": path})


@pytest.fixture
def pod(plan: PodPlan) -> Iterator[Pod]:
    made = Pod(plan)
    yield made
    made.kill()


def is_done(pod: Pod) -> bool:
    pod.tick()
    return pod.status().phase == "done"


def test_a_controller_that_does_not_listen_yet_is_not_killed(pod: Pod, gate: Path):
    """Its successor: tests/jobs/test_life_of_a_job.py."""
    pod.tick()
    (rank,) = pod.status().ranks
    assert not is_told_to_end(rank.pid)
    pod.request_stop()
    assert is_told_to_end(rank.pid)
    gate.touch()
    eventually(lambda: is_done(pod), pause=0.01)
    assert (pod.status().exit_code, pod.status().restarts) == (contract.EXIT_INVALID, 0)


def test_a_controller_that_hangs_when_it_is_told_to_end_has_failed(plan: PodPlan):
    pod = Pod(replace(plan, silent_seconds=0, startup_seconds=0, restarts_without_progress=0))
    pod.request_stop()
    eventually(lambda: is_done(pod), pause=0.01)
    assert exit_status(pod.status()) == contract.EXIT_FAILED


START_AND_DIE = f"""
import os, signal, subprocess, sys
os.environ[{contract.ENV_DIE_WITH_PARENT!r}] = str(os.getpid())
subprocess.Popen([sys.executable, "-m", "ppojob_trainer", "supervise"])
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_supervisor_ends_whose_starter_was_killed_at_once(tmp_path: Path):
    config = tmp_path / "config.json"
    os.mkfifo(config)  # nobody writes it: a supervisor that reads it is there for good
    starter = subprocess.Popen(
        [sys.executable, "-c", START_AND_DIE],
        env={**os.environ, contract.ENV_CONFIG: str(config)},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        starter.communicate(timeout=60)  # until the supervisor too has let go of the pipe
    except subprocess.TimeoutExpired:
        os.killpg(starter.pid, signal.SIGKILL)
        starter.communicate()
        pytest.fail("the supervisor lived on")


@pytest.mark.parametrize(("startup", "is_silent"), [(600.0, False), (0.0, True)])
def test_a_process_may_load_for_longer_than_it_may_be_silent(startup: float, is_silent: bool):
    child = Child("controller", dict(os.environ), 0, 0.0, startup)
    try:
        child.poll()
        assert child.is_silent == is_silent
        if is_silent:
            why = "sent no heartbeat for 0 s (spec.timeouts.startupSeconds)"
            assert child.describe_loss() == f"controller (pid {child.pid}) {why}"
    finally:
        child.kill()
