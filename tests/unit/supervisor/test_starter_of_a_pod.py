"""A pod on one machine does not outlive the runner that started it, however early that is gone."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ppojob_api import contract

pytestmark = pytest.mark.processes

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
