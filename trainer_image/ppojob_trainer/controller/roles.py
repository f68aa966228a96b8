"""The roles of a job as the controller sees them: who to ask, in which epoch, and who is lost."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ppojob_api import contract
from ppojob_api.topology import RoleTopology
from ppojob_trainer.controller.agreement import Agreement
from ppojob_trainer.errors import (
    ConfigError,
    Fenced,
    Interrupted,
    JobFailed,
    RoleLost,
    StorageError,
)
from ppojob_trainer.rpc.client import Call, Caller, CallRefused, CallTimeout, Peer, Pending
from ppojob_trainer.rpc.identity import PodIdentity
from ppojob_trainer.rpc.messages import CutChannel, PodStatus, StartRanks
from ppojob_trainer.rpc.methods import BARRIER, CUT_CHANNEL, IDENTITY, START, STATUS, Method
from ppojob_trainer.rpc.wire import ErrorKind, Nothing, RequestId

Answer = TypeVar("Answer", bound=msgspec.Struct)
Watch = Callable[[], None] | None
_log = logging.getLogger(__name__)
STATEFUL_ROLES = ("actorRollout", "critic")
ROLES_WITH_ROWS = ("actorRollout", "reference", "critic")
_POLL_SECONDS = 0.2
_LOSS_GRACE_SECONDS = 2.0
_IDENTITY_OF_LIVING = replace(IDENTITY, deadline_seconds=3)


@dataclass
class RoleGroup:
    """The processes of one role.

    Attributes:
        name: role.
        supervisors: one a pod.
        ranks: in the order of the role's world.
        is_stateful: whether its loss costs the steps since the last commit.
        has_channels: whether its ranks exchange rows with those of other roles.
        epoch: the epoch that the controller speaks to; 0 before the first.
    """

    name: str
    supervisors: tuple[Peer, ...]
    ranks: tuple[Peer, ...]
    is_stateful: bool
    has_channels: bool
    epoch: int = 0


def role_group(topology: RoleTopology, host: Callable[[str], str]) -> RoleGroup:
    """The group of a role that has pods of its own."""
    supervisors, ranks = [], []
    for pod in topology.pods:
        address = host(pod.host)
        supervisors.append(
            Peer(f"{pod.name} supervisor", address, contract.PORT_SUPERVISOR, topology.role)
        )
        for local_rank, rank in enumerate(topology.ranks_of(pod.index)):
            port = contract.PORT_FIRST_RANK + local_rank
            ranks.append(Peer(f"{topology.role} rank {rank}", address, port, topology.role))
    return RoleGroup(
        name=topology.role,
        supervisors=tuple(supervisors),
        ranks=tuple(ranks),
        is_stateful=topology.role in STATEFUL_ROLES,
        has_channels=topology.role in ROLES_WITH_ROWS,
    )


def _dispensable(calls: Sequence[Call[Any]], peer: Peer) -> str:
    """Of the roles that work cannot go on between though all live, the one that costs least."""
    roles = (call.peer.role for call in calls)
    return next((role for role in roles if role != "actorRollout"), peer.role)


@dataclass
class Roles:
    """Speaks to all roles; whatever waits here ends with `RoleLost` when a rank is lost.

    Attributes:
        caller: makes the calls.
        groups: the roles that have pods.
        startup_seconds: longest time from `start` to ready.
        stop_requested: whether somebody asked the job to end.
        agreement: of the pods on what they run.
        rewinds: how often the job went back to a commit: what was done before the last is no
            answer in this one.
    """

    caller: Caller
    groups: tuple[RoleGroup, ...]
    startup_seconds: float
    stop_requested: Callable[[], bool]
    agreement: Agreement
    rewinds: int = 0

    def group(self, name: str) -> RoleGroup:
        """One role by its name."""
        return next(group for group in self.groups if group.name == name)

    def status(self, group: RoleGroup) -> list[PodStatus]:
        """What the supervisors of a role say.

        Raises:
            RoleLost: one does not answer.
        """
        return self._ask_supervisors(group, STATUS, Nothing())

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

        def heed_stop() -> None:
            self._raise_if_stopping(group)

        limit = self.caller.default_deadline_seconds
        deadline = time.monotonic() + limit
        while reading := self._admit(group, IDENTITY, heed_stop):
            if time.monotonic() > deadline:
                raise RoleLost(group.name, f"{reading[0]}: no word of its models for {limit:g} s")
            heed_stop()
            time.sleep(_POLL_SECONDS)
        for peer in group.ranks:
            self.caller.forget(peer)
        group.epoch = epoch
        self._ask_supervisors(group, START, StartRanks(epoch), heed_stop)

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

    def ask(
        self,
        group: RoleGroup,
        method: Method[Any, Answer],
        requests: Sequence[msgspec.Struct],
        request_id: RequestId,
        ranks: Sequence[int] | None = None,
    ) -> list[Answer]:
        """Have ranks of a role do one piece of work, and wait for all of them.

        Args:
            group: the role.
            method: what to do.
            requests: one a rank that is asked.
            request_id: which work; `epoch` and `rewinds` are filled in.
            ranks: who is asked; all by default.

        Raises:
            RoleLost: a rank was lost meanwhile, does not answer in time, or was told otherwise.
            JobFailed: the work itself failed, as it would again.
            Fenced: another controller has taken over.
        """
        return self.collect(self.begin(group, method, requests, request_id, ranks))

    def begin(
        self,
        group: RoleGroup,
        method: Method[Any, Answer],
        requests: Sequence[msgspec.Struct],
        request_id: RequestId,
        ranks: Sequence[int] | None = None,
    ) -> Pending[Answer]:
        """Have ranks of a role begin a piece of work; `ask` in two halves.

        What other ranks are asked meanwhile must not be collective with it. Whoever does not
        `collect` it says so by `caller.give_up`.
        """
        peers = group.ranks if ranks is None else [group.ranks[rank] for rank in ranks]
        return self.caller.start(self._calls(group, method, peers, requests, request_id))

    def collect(self, begun: Pending[Answer]) -> list[Answer]:
        """Wait for work that was begun; raises as `ask`."""
        try:
            return self.caller.wait(begun, self.watch)
        except CallTimeout as silence:
            raise RoleLost(silence.peer.role, str(silence)) from silence
        except CallRefused as refusal:
            self._raise_if_fenced(refusal)
            self.raise_loss_first()
            if refusal.kind in (ErrorKind.CHANNEL_LOST, ErrorKind.CHANGED):
                raise RoleLost(_dispensable(begun.calls, refusal.peer), str(refusal)) from refusal
            if refusal.kind is ErrorKind.STORAGE:
                raise StorageError(Path(refusal.peer.name), refusal.failure.message) from refusal
            _log.error("%s\n%s", refusal, refusal.failure.detail)
            raise JobFailed(str(refusal)) from refusal

    def ask_all(
        self,
        group: RoleGroup,
        method: Method[Any, Answer],
        request: msgspec.Struct,
        request_id: RequestId,
    ) -> list[Answer]:
        """Tell all ranks of a role the same; as `ask`."""
        return self._wait(self._calls_to_all(group, method, request, request_id))

    def ask_both(
        self,
        groups: tuple[RoleGroup, RoleGroup],
        method: Method[Any, Nothing],
        requests: tuple[msgspec.Struct, msgspec.Struct],
        request_id: RequestId,
    ) -> None:
        """Have all ranks of two roles do one piece of work together; as `ask`.

        Args:
            groups: the two roles.
            method: what to do.
            requests: one for every rank of each role.
            request_id: which work.
        """
        calls = [
            call
            for group, request in zip(groups, requests, strict=True)
            for call in self._calls_to_all(group, method, request, request_id)
        ]
        self._wait(calls)

    def barrier(self, groups: Iterable[RoleGroup], step: int, stage: str) -> None:
        """Wait until the ranks of these roles have done all that they were told before.

        Args:
            groups: the roles, all of them serving.
            step: step of the loop.
            stage: what is to come.
        """
        # A controller that came back does not know what its predecessor has asked for, so the
        # answer to its question is no answer.
        id_ = RequestId(0, step, f"idle/{stage}/{self.caller.epoch}")
        calls = [
            call for group in groups for call in self._calls_to_all(group, BARRIER, Nothing(), id_)
        ]
        self._wait(calls)

    def cut_channels(self, role: str) -> None:
        """End whatever waits on a channel to a role that is lost, at its peers."""
        peers = [
            peer
            for group in self.groups
            if group.name != role and group.epoch > 0 and group.has_channels
            for peer in group.ranks
        ]
        try:
            self.caller.call_all([Call(peer, CUT_CHANNEL, CutChannel(role)) for peer in peers])
        except (CallTimeout, CallRefused) as problem:
            _log.info("a channel to %s was not cut: %s", role, problem)

    def _is_coming(self, group: RoleGroup) -> bool:
        coming = ("starting", "ready")
        return all(s.epoch == group.epoch and s.phase in coming for s in self.status(group))

    def _calls(
        self,
        group: RoleGroup,
        method: Method[Any, Answer],
        peers: Sequence[Peer],
        requests: Sequence[msgspec.Struct],
        request_id: RequestId,
    ) -> list[Call[Answer]]:
        id_ = msgspec.structs.replace(request_id, epoch=group.epoch, rewinds=self.rewinds)
        return [
            Call(peer, method, request, id_) for peer, request in zip(peers, requests, strict=True)
        ]

    def _calls_to_all(
        self,
        group: RoleGroup,
        method: Method[Any, Answer],
        request: msgspec.Struct,
        request_id: RequestId,
    ) -> list[Call[Answer]]:
        requests = [request] * len(group.ranks)
        return self._calls(group, method, group.ranks, requests, request_id)

    def _wait(self, calls: Sequence[Call[Answer]]) -> list[Answer]:
        return self.collect(self.caller.start(calls))

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

    def _ask_supervisors(
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
            self._raise_if_fenced(refusal)
            raise

    def _admit(self, group: RoleGroup, method: Method[Any, PodIdentity], watch: Watch) -> list[str]:
        identities = self._ask_supervisors(group, method, Nothing(), watch)
        return self.agreement.admit([peer.name for peer in group.supervisors], identities)

    def _raise_if_fenced(self, refusal: CallRefused) -> None:
        """Another controller has taken over: whatever this one wants is of no account."""
        if refusal.kind is ErrorKind.FENCED:
            epoch = self.caller.epoch
            raise Fenced(refusal.peer.role, epoch, epoch + 1) from refusal

    def _missing(self, groups: Iterable[RoleGroup]) -> str:
        missing = [
            f"{group.name} rank {state.rank} ({state.state})"
            for group in groups
            for status in self.status(group)
            for state in status.ranks
            if state.state != "ready"
        ]
        return ", ".join(missing) or "their pods"
