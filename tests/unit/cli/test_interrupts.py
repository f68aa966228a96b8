import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ppojob_api import contract
from ppojob_cli.run import Interrupts, stopped_at_once

ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture
def interrupts() -> Iterator[Interrupts]:
    before = {number: signal.signal(number, signal.SIG_DFL) for number in ASKING}
    yield Interrupts()
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_closed_terminal_or_a_service_manager_asks_however_often(number, interrupts):
    for _ in range(3):
        signal.raise_signal(number)
        assert interrupts.count == 1


def test_nohup_is_respected(interrupts: Interrupts) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    again = Interrupts()
    signal.raise_signal(signal.SIGHUP)
    assert (interrupts.count, again.count) == (0, 0)


@pytest.mark.parametrize("first", ASKING)
def test_ctrl_c_insists_on_what_was_asked(first: signal.Signals, interrupts: Interrupts) -> None:
    signal.raise_signal(first)
    signal.raise_signal(signal.SIGINT)
    assert interrupts.count == 2


def test_an_end_at_once_promises_no_checkpoint_that_is_not_there(tmp_path: Path) -> None:
    assert "there is no checkpoint" in stopped_at_once(tmp_path).reason
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "latest").symlink_to("step-000002")
    assert "resumes from the last checkpoint" in stopped_at_once(tmp_path).reason


@pytest.mark.processes
@pytest.mark.parametrize("command", ["validate", "plan", "run"])
def test_ctrl_c_while_a_manifest_is_read(command: str, tmp_path: Path) -> None:
    manifest = tmp_path / "job.yaml"
    os.mkfifo(manifest)
    command_line = [sys.executable, "-m", "ppojob_cli", command, manifest]
    with (
        subprocess.Popen(
            command_line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process,
        manifest.open("wb"),  # opens when the reader does
    ):
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=60)
    assert (process.returncode, printed) == (contract.EXIT_INTERRUPTED, "")
