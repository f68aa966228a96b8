"""Pod state machine: which processes run, and whether the role's attempt is lost.

A role pod runs the ranks of one attempt and nothing in between: the first rank that ends or stops
its heartbeat ends all of them, and the pod waits for the controller to start the next attempt. The
controller's pod runs the controller, and restarts a killed one by itself, since nobody else could.
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
from ppojob_trainer.supervisor.forked_process import ForkServer

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PodPlan:
    """What a pod is to run.

    Attributes:
        first_rank: rank of the first of them in the role's world.
        silent_seconds: heartbeat timeout, after which a process counts as lost.
        startup_seconds: the same for its first one.
        restarts_without_progress: restarts of a controller without progress.
        has_gpus: whether each rank has a GPU, the one of its number among those of the pod.
        fork_server: folder of the server that forks its processes; None: they are not forked.
    """

    role: str
    pod: int
    ranks: int
    first_rank: int
    silent_seconds: float
    startup_seconds: float
    restarts_without_progress: int
    environment: dict[str, str]
    has_gpus: bool = False
    fork_server: str | None = None

    def rank_environment(self, attempt: int, local_rank: int) -> dict[str, str]:
        """Return the environment of one rank of the pod.

        It sees only its own GPU: libraries use the first one that they see.
        """
        told = {
            contract.ENV_RANK: str(self.first_rank + local_rank),
            contract.ENV_LOCAL_RANK: str(local_rank),
            contract.ENV_ATTEMPT: str(attempt),
        }
        if self.has_gpus:
            given = self.environment.get(contract.ENV_VISIBLE_GPUS)
            seen = [str(local_rank)] if given is None else given.split(",")[local_rank:][:1]
            told[contract.ENV_VISIBLE_GPUS] = "".join(seen)
        return {**self.environment, **told}


class Pod:
    """The processes of one pod. `tick` runs on one thread; the rest may be called from any."""

    def __init__(self, plan: PodPlan) -> None:
        self._plan = plan
        self._forks = ForkServer(Path(plan.fork_server)) if plan.fork_server else None
        self._lock = threading.Lock()
        self._children: list[Child] = []
        self._wanted_attempt = 1 if self.is_controller else 0
        self._attempt = 0
        self._phase = "idle"
        self._reason = ""
        self._restarts = 0
        self._restarts_without_progress = 0
        self._exit_code: int | None = None
        self._is_ending = False

    @property
    def is_controller(self) -> bool:
        """Whether this is the controller's pod."""
        return self._plan.role == "controller"

    def want_attempt(self, attempt: int) -> PodStatus:
        """Request the ranks of an attempt; an earlier or present attempt changes nothing."""
        with self._lock:
            self._wanted_attempt = max(self._wanted_attempt, attempt)
        return self.status()

    def status(self) -> PodStatus:
        """Return the pod's present status; a requested attempt is `starting`."""
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
        """Check the processes once and act."""
        if self._wanted_attempt > self._attempt:
            self._start_attempt(self._wanted_attempt)
        for child in self._children:
            child.watch()
        if self._phase in {"starting", "ready"}:
            self._judge()

    def ask_to_end(self) -> None:
        """Ask the controller, also one yet to start, to finish its step, save and leave."""
        self._is_ending = True
        for child in self._children:
            child.signal(signal.SIGTERM)

    def end(self) -> None:
        """End all processes and wait until they are gone."""
        for child in self._children:
            child.end()
        self._children = []

    def _start_attempt(self, attempt: int) -> None:
        self.end()
        children = self._started(attempt)
        pids = [child.pid or "by the fork server" for child in children]
        _log.info("%s: attempt %d: started %s", self._plan.role, attempt, pids)
        with self._lock:
            self._restarts += 1 if self._attempt else 0
            self._children = children
            self._attempt = attempt
            self._phase = "starting"
            self._reason = ""
        if self._is_ending:
            self.ask_to_end()  # the one before was killed, or there was none

    def _started(self, attempt: int) -> list[Child]:
        command = "controller" if self.is_controller else "rank"
        # A rank does not listen: it is never asked to end.
        with stop_signal.held_back() if self.is_controller else contextlib.nullcontext():
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

    def _judge(self) -> None:
        lost = [child for child in self._children if child.exit_code is not None or child.is_silent]
        if lost:
            self._lose(lost[0])
        elif self._phase == "starting" and all(c.state().state == "ready" for c in self._children):
            with self._lock:
                self._phase = "ready"

    def _lose(self, lost: Child) -> None:
        if lost.is_silent:
            lost.dump_stacks()
        reason = lost.describe_loss()
        again = self.is_controller and self._may_restart(lost)
        exit_code = lost.exit_code
        for child in self._children:
            child.end()
        level = logging.INFO if exit_code == contract.EXIT_DONE else logging.WARNING
        _log.log(level, "%s: attempt %d ended: %s", self._plan.role, self._attempt, reason)
        with self._lock:
            self._children = []
            self._reason = reason
            self._phase = "done" if self.is_controller and not again else "lost"
            self._exit_code = exit_code
            if again:
                self._wanted_attempt = self._attempt + 1

    def _may_restart(self, controller: Child) -> bool:
        """Whether a controller that ended was killed, and not too often without progress."""
        if controller.has_progressed:
            self._restarts_without_progress = 0
        self._restarts_without_progress += 1
        was_killed = controller.exit_code is None or controller.exit_code < 0
        budget = self._plan.restarts_without_progress
        return was_killed and self._restarts_without_progress <= budget
