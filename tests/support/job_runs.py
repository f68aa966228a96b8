"""`ppojob run` as a person starts it, watched by a test."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import run_folders

from ppojob_trainer.supervisor.forked_process import Process


@dataclass
class Run:
    """One call of `ppojob run`: its process, its run folder, and the file of what it says."""

    process: Process
    output: Path
    said: Path
    lines: list[str] = field(default_factory=list)

    def wait(self, seconds: float = 300.0) -> int:
        """Wait for the end; answers the exit status. What it printed is in `lines`."""
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            pytest.fail(f"no end within {seconds} s:\n{self.said.read_text()}\n{self.logs()}")
        self.lines = self.said.read_text().splitlines()
        return status

    def succeed(self, seconds: float = 300.0) -> "Run":
        """Wait for the end, which must be a good one."""
        assert self.wait(seconds) == 0, self.logs()
        return self

    def logs(self) -> str:
        return "\n".join(
            f"== {log.name}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-25:])
            for log in sorted((self.output / "logs").glob("*.log"))
        )

    def wait_for_step(self, step: int, seconds: float = 180.0) -> None:
        def is_done() -> bool:
            return any(record["step"] >= step for record in run_folders.metrics(self.output))

        self.wait_until(is_done, f"step {step} done", seconds)

    def wait_until(self, is_so: Callable[[], bool], what: str, seconds: float = 180.0) -> None:
        """Wait until something is so, as long as the job runs."""
        deadline = time.monotonic() + seconds
        while not is_so():
            if self.process.poll() is not None:
                pytest.fail(f"ended before {what}:\n{self.logs()}")
            if time.monotonic() > deadline:
                pytest.fail(f"never {what}:\n{self.logs()}")
            time.sleep(0.05)

    def wait_until_stopped(self) -> int:
        """Wait until the controller has stopped itself; answers its process id."""

        def stopped() -> int | None:
            pid = run_folders.rank_pids(self.output, "controller").get("controller")
            told = Path(f"/proc/{pid}/stat").read_text() if pid else ") "
            return pid if told.rsplit(")", 1)[1].split()[:1] == ["T"] else None

        self.wait_until(lambda: stopped() is not None, "the controller stopped")
        found = stopped()
        assert found is not None
        return found

    def interrupt_where_it_stopped(self) -> None:
        """Ask for an end while the controller has stopped itself, and let it go on."""
        controller = self.wait_until_stopped()
        self.process.send_signal(signal.SIGINT)
        self.wait_until(lambda: run_folders.is_told_to_end(controller), "the controller told")
        os.kill(controller, signal.SIGCONT)
