"""State machine of a pod: starts its processes and detects that an attempt is lost.

A pod of ranks runs one attempt at a time. When one rank ends or stops its heartbeat, all of them
are killed, and the pod waits for the controller to start the next attempt. The controller's pod
restarts a killed controller by itself.
"""

import contextlib
import logging
import signal
import threading
from dataclasses import dataclass
from pathlib import Path

from ppojob_api import contract
from ppojob_trainer import stop_signal
from ppojob_trainer.rpc.messages.pods import PodStatus
from ppojob_trainer.supervisor.child import Child
from ppojob_trainer.supervisor.forked_process import ForkClient

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PodPlan:
    """Processes of a pod."""

    role: str
    pod: int
    ranks: int
    first_rank: int  # its first rank within the role
    silent_seconds: float  # heartbeat timeout
    startup_seconds: float  # timeout of the first heartbeat
    restarts_without_progress: int  # allowed restarts of the controller without progress
    environment: dict[str, str]
    has_gpus: bool = False  # whether each rank has the GPU of its number in the pod
    fork_server: str | None = None  # folder of the fork server; None without one

    def rank_environment(self, attempt: int, local_rank: int) -> dict[str, str]:
        """Return the environment of one rank, in which only its own GPU is visible."""
        own = {
            contract.ENV_RANK: str(self.first_rank + local_rank),
            contract.ENV_LOCAL_RANK: str(local_rank),
            contract.ENV_ATTEMPT: str(attempt),
        }
        if self.has_gpus:
            given = self.environment.get(contract.ENV_VISIBLE_GPUS)
            seen = [str(local_rank)] if given is None else given.split(",")[local_rank:][:1]
            own[contract.ENV_VISIBLE_GPUS] = "".join(seen)
        return {**self.environment, **own}


class Pod:
    """The processes of one pod; `request_attempt` and `status` are thread-safe."""

    def __init__(self, plan: PodPlan) -> None:
        self._plan = plan
        self._forks = ForkClient(Path(plan.fork_server)) if plan.fork_server else None
        self._lock = threading.Lock()
        self._children: list[Child] = []
        self._wanted_attempt = 1 if self.is_controller else 0
        self._attempt = 0
        self._phase = "idle"
        self._reason = ""
        self._restarts = 0
        self._restarts_without_progress = 0
        self._exit_code: int | None = None
        self._is_stopping = False

    @property
    def is_controller(self) -> bool:
        return self._plan.role == "controller"

    def request_attempt(self, attempt: int) -> PodStatus:
        """Request an attempt; an earlier or the current attempt changes nothing."""
        with self._lock:
            self._wanted_attempt = max(self._wanted_attempt, attempt)
        return self.status()

    def status(self) -> PodStatus:
        """Return the status; a requested attempt is `starting`."""
        with self._lock:
            is_wanted = self._wanted_attempt > self._attempt
            return PodStatus(
                role=self._plan.role,
                pod=self._plan.pod,
                attempt=self._wanted_attempt if is_wanted else self._attempt,
                phase="starting" if is_wanted else self._phase,
                ranks=tuple(child.state() for child in self._children),
                reason=self._reason,
                exit_code=self._exit_code,
                restarts=self._restarts,
            )

    def tick(self) -> None:
        """Poll the processes once, start a requested attempt and handle a loss."""
        if self._wanted_attempt > self._attempt:
            self._start_attempt(self._wanted_attempt)
        for child in self._children:
            child.poll()
        if self._phase in {"starting", "ready"}:
            self._update_phase()

    def request_stop(self) -> None:
        """Ask the current or next controller to finish its step, save and exit."""
        self._is_stopping = True
        for child in self._children:
            child.signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill all processes and wait until they have ended."""
        for child in self._children:
            child.kill()
        self._children = []

    def _start_attempt(self, attempt: int) -> None:
        self.kill()
        children = self._start_children(attempt)
        pids = [child.pid or "by the fork server" for child in children]
        _log.info("%s: attempt %d: started %s", self._plan.role, attempt, pids)
        with self._lock:
            self._restarts += 1 if self._attempt else 0
            self._children = children
            self._attempt = attempt
            self._phase = "starting"
            self._reason = ""
        if self._is_stopping:
            self.request_stop()

    def _start_children(self, attempt: int) -> list[Child]:
        command = "controller" if self.is_controller else "rank"
        # Ranks have no handler of SIGTERM.
        with stop_signal.sigterm_blocked() if self.is_controller else contextlib.nullcontext():
            return [
                Child(
                    command,
                    self._plan.rank_environment(attempt, local_rank),
                    self._plan.first_rank + local_rank,
                    self._plan.silent_seconds,
                    self._plan.startup_seconds,
                    self._forks,
                )
                for local_rank in range(self._plan.ranks)
            ]

    def _update_phase(self) -> None:
        lost = [child for child in self._children if child.exit_code is not None or child.is_silent]
        if lost:
            self._end_attempt(lost[0])
        elif self._phase == "starting" and all(c.state().state == "ready" for c in self._children):
            with self._lock:
                self._phase = "ready"

    def _end_attempt(self, lost: Child) -> None:
        if lost.is_silent:
            lost.dump_stacks()
        reason = lost.describe_loss()
        restarts = self.is_controller and self._may_restart(lost)
        exit_code = lost.exit_code
        self.kill()
        level = logging.INFO if exit_code == contract.EXIT_DONE else logging.WARNING
        _log.log(level, "%s: attempt %d ended: %s", self._plan.role, self._attempt, reason)
        with self._lock:
            self._reason = reason
            self._phase = "done" if self.is_controller and not restarts else "lost"
            self._exit_code = exit_code
            if restarts:
                self._wanted_attempt = self._attempt + 1

    def _may_restart(self, controller: Child) -> bool:
        if controller.has_progressed:
            self._restarts_without_progress = 0
        self._restarts_without_progress += 1
        was_killed = controller.exit_code is None or controller.exit_code < 0
        budget = self._plan.restarts_without_progress
        return was_killed and self._restarts_without_progress <= budget
