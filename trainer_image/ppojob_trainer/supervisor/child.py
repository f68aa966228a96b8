"""Child process of a supervisor: start, heartbeats, end."""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping

from ppojob_api import contract
from ppojob_trainer.heartbeat_pipe import HeartbeatReader
from ppojob_trainer.rpc.messages.pods import RankState
from ppojob_trainer.supervisor.forked_process import ForkClient, Process

_log = logging.getLogger(__name__)
_STACK_DUMP_SECONDS = 0.5


class Child:
    """A process started by the supervisor, by a fork server if there is one that works.

    `silent_seconds` is the heartbeat timeout, `startup_seconds` that of the first heartbeat, which
    comes after the imports.
    """

    def __init__(
        self,
        command: str,
        environment: Mapping[str, str],
        rank: int,
        silent_seconds: float,
        startup_seconds: float,
        forks: ForkClient | None = None,
    ) -> None:
        self._name = "controller" if command == "controller" else f"rank {rank}"
        self._rank = rank
        self._silent_seconds = silent_seconds
        self._startup_seconds = startup_seconds
        self._silent = False
        reader, writer = os.pipe()
        try:
            forked = _forked(forks, command, environment, writer) if forks else None
            self._process = forked or _started(command, environment, writer)
        finally:
            os.close(writer)
        self._heartbeat = HeartbeatReader(reader, time.monotonic())

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit status as of `subprocess`: negative for a signal; None while it runs."""
        return self._process.returncode

    @property
    def has_progressed(self) -> bool:
        return self._heartbeat.has_progressed

    @property
    def is_silent(self) -> bool:
        """Whether it runs without heartbeats."""
        return self._silent and self.exit_code is None

    def poll(self) -> None:
        now = time.monotonic()
        self._heartbeat.read(now)
        self._process.poll()
        if not self.pid:
            self._heartbeat.last_beat = now  # not forked yet
        self._silent = now - self._heartbeat.last_beat > self._timeout[1]

    @property
    def _timeout(self) -> tuple[str, float]:
        """Return the field that sets its heartbeat timeout, and the timeout."""
        if self._heartbeat.has_begun:
            return "livenessSeconds", self._silent_seconds
        return "startupSeconds", self._startup_seconds

    def state(self) -> RankState:
        if self.exit_code is not None:
            name = "exited"
        elif self._silent:
            name = "silent"
        else:
            name = "ready" if self._heartbeat.ready else "starting"
        return RankState(self._rank, self.pid, name, self.exit_code, self._heartbeat.error)

    def signal(self, number: int) -> None:
        """Send a signal, if it still runs."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def dump_stacks(self) -> None:
        """Ask it to write the stacks of its threads to the log."""
        self.signal(signal.SIGUSR1)
        time.sleep(_STACK_DUMP_SECONDS)

    def kill(self) -> None:
        """Kill it and wait until it has ended."""
        self.signal(signal.SIGKILL)
        self._process.wait()
        self._heartbeat.read(time.monotonic())
        self._heartbeat.close()

    def describe_loss(self) -> str:
        """Return one line that says why it is lost."""
        state = self.state()
        who = f"{self._name} (pid {self.pid})"
        if self.is_silent:
            field, seconds = self._timeout
            return f"{who} sent no heartbeat for {seconds:g} s (spec.timeouts.{field})"
        code = state.exit_code or 0
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        why = f": {state.error}" if state.error else ""
        return f"{who} ended by {how}{why}"


def _forked(
    forks: ForkClient, command: str, environment: Mapping[str, str], heartbeat: int
) -> Process | None:
    try:
        return forks.fork(command, environment, heartbeat)
    except OSError as problem:
        _log.warning("fork server: %s; the %s is started as a new process", problem, command)
        return None


def _started(command: str, environment: Mapping[str, str], heartbeat: int) -> Process:
    return subprocess.Popen(
        [sys.executable, "-m", "ppojob_trainer", command],
        env={
            **environment,
            contract.ENV_DIE_WITH_PARENT: str(os.getpid()),
            contract.ENV_HEARTBEAT: str(heartbeat),
        },
        stdin=subprocess.DEVNULL,
        pass_fds=(heartbeat,),
    )
