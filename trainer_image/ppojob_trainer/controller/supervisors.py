"""The supervisors of all pods: they start ranks, and say which live."""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import msgspec

from ppojob_api import contract
from ppojob_trainer.controller.agreement import Agreement
from ppojob_trainer.controller.role_group import RoleGroup
from ppojob_trainer.errors import ConfigError, Fenced, Interrupted, JobFailed, RoleLost
from ppojob_trainer.rpc.client import Call, Caller, CallRefused, CallTimeout
from ppojob_trainer.rpc.identity import PodIdentity
from ppojob_trainer.rpc.messages.pods import PodStatus, StartRanks
from ppojob_trainer.rpc.methods import IDENTITY, START, STATUS, Method
from ppojob_trainer.rpc.wire import ErrorKind, Nothing

Answer = TypeVar("Answer", bound=msgspec.Struct)
Watch = Callable[[], None] | None
_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.2
_LOSS_GRACE_SECONDS = 2.0
_IDENTITY_OF_LIVING = replace(IDENTITY, deadline_seconds=3)


@dataclass
class Supervisors:
    """Starts the ranks of roles, and raises `RoleLost` where one is gone.

    Attributes:
        caller: makes the calls.
        groups: the roles that have pods.
        startup_seconds: longest time from `start` to ready.
        stop_requested: whether somebody asked the job to end.
        agreement: of the pods on what they run.
    """

    caller: Caller
    groups: tuple[RoleGroup, ...]
    startup_seconds: float
    stop_requested: Callable[[], bool]
    agreement: Agreement

    def status(self, group: RoleGroup) -> list[PodStatus]:
        """What the supervisors of a role say.

        Raises:
            RoleLost: one does not answer.
        """
        return self._ask(group, STATUS, Nothing())

    def is_ready(self, group: RoleGroup, epoch: int) -> bool:
        """Whether all ranks of an epoch serve."""
        return all(s.epoch == epoch and s.phase == "ready" for s in self.status(group))

    def missing(self) -> list[RoleGroup]:
        """The roles that do not serve in their epoch, nor are about to.

        What the pods of the others run is taken in, so that those to be started are compared with
        them: a controller that came back has not seen them start.

        Raises:
            RoleLost: a supervisor does not answer.
            ConfigError: pods that live run other things.
        """
        found = []
        for group in self.groups:
            if group.epoch == 0 or not self._is_coming(group):
                found.append(group)
                continue
            try:
                self._admit(group, _IDENTITY_OF_LIVING, None)
            except RoleLost as slow:  # which is no reason to take its ranks
                _log.warning("%s; no other pod is compared with it", slow)
        return found

    def start(self, group: RoleGroup, epoch: int) -> None:
        """Begin an epoch of a role, whose pods may have to be made first; see `wait_ready`.

        Raises:
            RoleLost: a supervisor does not answer.
            ConfigError: a pod runs something else than the others; nothing of it is started.
            Interrupted: somebody asked the job to end, and there is nothing to wait for.
        """

        def raise_if_stopping() -> None:
            self._raise_if_stopping(group)

        limit = self.caller.default_deadline_seconds
        deadline = time.monotonic() + limit
        while reading := self._admit(group, IDENTITY, raise_if_stopping):
            if time.monotonic() > deadline:
                raise RoleLost(group.name, f"{reading[0]}: no word of its models for {limit:g} s")
            raise_if_stopping()
            time.sleep(_POLL_SECONDS)
        for peer in group.ranks:
            self.caller.forget(peer)
        group.epoch = epoch
        self._ask(group, START, StartRanks(epoch), raise_if_stopping)

    def wait_ready(self, groups: Iterable[RoleGroup], *, may_stop: bool) -> None:
        """Wait until all ranks of these roles serve.

        Args:
            groups: the roles.
            may_stop: whether a job that is asked to end does so here; not where the others hold
                a step that is neither done nor in a commit.

        Raises:
            RoleLost: a rank ended while starting.
            JobFailed: it takes longer than the limit; names the ranks that are missing.
            Interrupted: somebody asked the job to end.
        """
        deadline = time.monotonic() + self.startup_seconds
        waiting = list(groups)
        while waiting:
            if may_stop and self.stop_requested():
                raise Interrupted("asked to end while the roles were starting")
            self.watch()
            waiting = [group for group in waiting if not self.is_ready(group, group.epoch)]
            if waiting and time.monotonic() > deadline:
                raise JobFailed(
                    f"spec.timeouts.startupSeconds: {self.startup_seconds:g} s are over and "
                    f"{self._missing(waiting)} do not serve; raise the limit or see their logs"
                )
            if waiting:
                time.sleep(_POLL_SECONDS)

    def watch(self) -> None:
        """Ask all supervisors once.

        Raises:
            RoleLost: a role lost a rank, or a supervisor does not answer.
            ConfigError: a rank found its input wrong, as it would again.
        """
        for group in self.groups:
            if group.epoch == 0:
                continue
            for status in self.status(group):
                if status.epoch < group.epoch:
                    raise RoleLost(group.name, f"pod {status.pod}: it began anew, without ranks")
                if status.phase != "lost":
                    continue
                if status.exit_code == contract.EXIT_INVALID:
                    raise ConfigError(status.reason)
                raise RoleLost(group.name, f"pod {status.pod}: {status.reason}")

    def raise_loss_first(self) -> None:
        """A rank that fails because another one died must not be blamed: `RoleLost` of that."""
        deadline = time.monotonic() + _LOSS_GRACE_SECONDS
        while time.monotonic() < deadline:
            self.watch()
            time.sleep(_POLL_SECONDS)

    def _is_coming(self, group: RoleGroup) -> bool:
        coming = ("starting", "ready")
        return all(s.epoch == group.epoch and s.phase in coming for s in self.status(group))

    def _raise_if_stopping(self, lost: RoleGroup) -> None:
        """Leave where a job that is asked to end waits for a role, and no rank holds a step.

        A job that is deleted loses all its pods at once, and none of them comes back.
        """
        if not self.stop_requested():
            return
        if lost.is_stateful:
            raise Interrupted(f"asked to end without {lost.name}: the last commit stands")
        for group in self.groups:
            if group.is_stateful and group.epoch > 0:
                try:
                    self.status(group)
                except RoleLost as also:
                    raise Interrupted(f"asked to end without {lost.name}; {also}") from also

    def _ask(
        self,
        group: RoleGroup,
        method: Method[Any, Answer],
        request: msgspec.Struct,
        watch: Watch = None,
    ) -> list[Answer]:
        calls = [Call(peer, method, request) for peer in group.supervisors]
        try:
            return self.caller.call_all(calls, watch)
        except CallTimeout as silence:
            raise RoleLost(group.name, str(silence)) from silence
        except CallRefused as refusal:
            raise_if_fenced(refusal, self.caller)
            raise

    def _admit(self, group: RoleGroup, method: Method[Any, PodIdentity], watch: Watch) -> list[str]:
        identities = self._ask(group, method, Nothing(), watch)
        return self.agreement.admit([peer.name for peer in group.supervisors], identities)

    def _missing(self, groups: Iterable[RoleGroup]) -> str:
        missing = [
            f"{group.name} rank {state.rank} ({state.state})"
            for group in groups
            for status in self.status(group)
            for state in status.ranks
            if state.state != "ready"
        ]
        return ", ".join(missing) or "their pods"


def raise_if_fenced(refusal: CallRefused, caller: Caller) -> None:
    """Raise `Fenced` where a call was refused because another controller has taken over."""
    if refusal.kind is ErrorKind.FENCED:
        raise Fenced(refusal.peer.role, caller.epoch, caller.epoch + 1) from refusal
