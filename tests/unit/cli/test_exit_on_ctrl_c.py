import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ppojob_api import contract

pytestmark = pytest.mark.processes


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
