"""Role groups: the pods and ranks of each role, their liveness, and calls to them."""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ppojob_api import contract
from ppojob_api.topology import RoleTopology
from ppojob_trainer.errors import (
    ConfigError,
    Fenced,
    Interrupted,
    JobFailed,
    RoleLost,
    StorageError,
)
from ppojob_trainer.rpc.client import Call, Caller, CallRefused, CallTimeout, Peer, Pending
from ppojob_trainer.rpc.identity import Agreement, PodIdentity
from ppojob_trainer.rpc.messages.pods import PodStatus, StartRanks
from ppojob_trainer.rpc.messages.rows import CutChannel
from ppojob_trainer.rpc.methods import BARRIER, CUT_CHANNEL, IDENTITY, START, STATUS, Method
from ppojob_trainer.rpc.wire import ErrorKind, Nothing, RequestId

Answer = TypeVar("Answer", bound=msgspec.Struct)
Watch = Callable[[], None] | None
_log = logging.getLogger(__name__)
_SAVED_ROLES = ("actorRollout", "critic")
_ROLES_WITH_ROWS = ("actorRollout", "rollout", "reference", "critic")
_POLL_SECONDS = 0.2
_LOSS_GRACE_SECONDS = 2.0
_IDENTITY_OF_LIVING = replace(IDENTITY, deadline_seconds=3)


@dataclass
class RoleGroup:
    """The processes of one role."""

    name: str
    supervisors: tuple[Peer, ...]
    ranks: tuple[Peer, ...]  # in rank order
    is_stateful: bool  # whether its loss costs the steps since the last checkpoint
    has_channels: bool  # whether its ranks exchange rows with other roles
    attempt: int = 0  # current attempt; 0 before the first
    is_saved: bool = False  # whether checkpoints contain its state


def role_group(topology: RoleTopology, host: Callable[[str], str], *, ahead: int) -> RoleGroup:
    """Return the group of a role with its own pods; `ahead` is the lookahead of the engines.

    Engines with lookahead hold the only copy of their weights, and partial rows if it exceeds one.
    """
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
        is_stateful=topology.role in _SAVED_ROLES or (topology.role == "rollout" and ahead > 0),
        has_channels=topology.role in _ROLES_WITH_ROWS,
        is_saved=topology.role in _SAVED_ROLES or (topology.role == "rollout" and ahead > 1),
    )


@dataclass
class Roles:
    """Starts the ranks of roles and calls them.

    Every wait raises `RoleLost` if a rank is lost or a supervisor does not answer.
    """

    caller: Caller
    groups: tuple[RoleGroup, ...]  # the roles with pods
    startup_seconds: float  # time limit from `start` to ready
    stop_requested: Callable[[], bool]  # whether the job was asked to stop
    agreement: Agreement
    rewinds: int = 0  # number of rewinds, a part of request ids
    meanwhile: Watch = None  # called repeatedly during waits

    @property
    def stateful(self) -> list[RoleGroup]:
        """Return the roles whose loss requires a rewind."""
        return [group for group in self.groups if group.is_stateful]

    @property
    def saved(self) -> list[RoleGroup]:
        """Return the roles whose state is in checkpoints."""
        return [group for group in self.groups if group.is_saved]

    @property
    def owner(self) -> RoleGroup:
        """Return the role whose ranks own the rows."""
        return self.group("actorRollout")

    def group(self, name: str) -> RoleGroup:
        return next(group for group in self.groups if group.name == name)

    def status(self, group: RoleGroup) -> list[PodStatus]:
        return self._call_supervisors(group, STATUS, Nothing())

    def is_ready(self, group: RoleGroup, phases: Collection[str] = ("ready",)) -> bool:
        """Whether all pods of the role are in one of these phases of its current attempt."""
        return all(s.attempt == group.attempt and s.phase in phases for s in self.status(group))

    def missing(self) -> list[RoleGroup]:
        """Return the roles that are neither ready nor starting.

        The identities of the other pods are read for the comparison; ConfigError if they differ.
        """
        found = []
        for group in self.groups:
            if group.attempt == 0 or not self.is_ready(group, ("starting", "ready")):
                found.append(group)
                continue
            try:
                self._admit(group, _IDENTITY_OF_LIVING, None)
            except RoleLost as slow:  # its ranks may still be fine
                _log.warning("%s; it is not compared with other pods", slow)
        return found

    def start(self, group: RoleGroup, attempt: int) -> None:
        """Start an attempt of a role, once its pods exist; `wait_ready` waits for the ranks.

        ConfigError if a pod differs from the others; Interrupted as in `_raise_if_stopping`.
        """
        raise_if_stopping = partial(self._raise_if_stopping, group)
        limit = self.caller.default_deadline_seconds
        deadline = time.monotonic() + limit
        while reading := self._admit(group, IDENTITY, raise_if_stopping):
            if time.monotonic() > deadline:
                raise RoleLost(
                    group.name, f"{reading[0]}: its models were not read within {limit:g} s"
                )
            raise_if_stopping()
            time.sleep(_POLL_SECONDS)
        for peer in group.ranks:
            self.caller.disconnect(peer)
        group.attempt = attempt
        self._call_supervisors(group, START, StartRanks(attempt), raise_if_stopping)

    def wait_ready(self, *, may_stop: bool) -> None:
        """Wait until all ranks of all roles are ready.

        Args:
            may_stop: whether a stop request ends the wait; not while ranks hold an unsaved step.

        Raises:
            RoleLost: a rank ended while starting.
            JobFailed: the time limit is over; the message names the missing ranks.
            Interrupted: the job was asked to stop.
        """
        deadline = time.monotonic() + self.startup_seconds
        waiting = list(self.groups)
        while waiting:
            if may_stop and self.stop_requested():
                raise Interrupted("stopped while the roles were starting")
            self.watch()
            waiting = [group for group in waiting if not self.is_ready(group)]
            if waiting and time.monotonic() > deadline:
                raise JobFailed(
                    f"spec.timeouts.startupSeconds: after {self.startup_seconds:g} s "
                    f"{self._missing_ranks(waiting)} are not ready; raise the limit or see their "
                    "logs"
                )
            if waiting:
                time.sleep(_POLL_SECONDS)

    def watch(self) -> None:
        """Poll all supervisors once.

        RoleLost if a rank or supervisor is lost; ConfigError if a rank refused its input.
        """
        for group in self.groups:
            if group.attempt == 0:
                continue
            for status in self.status(group):
                if status.attempt < group.attempt:
                    raise RoleLost(group.name, f"pod {status.pod}: it was restarted, without ranks")
                if status.phase != "lost":
                    continue
                if status.exit_code == contract.EXIT_INVALID:
                    raise ConfigError(status.reason)
                raise RoleLost(group.name, f"pod {status.pod}: {status.reason}")

    def raise_if_lost(self) -> None:
        """Watch for two seconds: a call may have failed because another rank was lost."""
        deadline = time.monotonic() + _LOSS_GRACE_SECONDS
        while time.monotonic() < deadline:
            self.watch()
            time.sleep(_POLL_SECONDS)

    def _raise_if_stopping(self, lost: RoleGroup) -> None:
        """Raise Interrupted if a stop was requested and no rank holds an unsaved step.

        The pods of a deleted job end all at once and are not recreated.
        """
        if not self.stop_requested():
            return
        if lost.is_stateful:
            raise Interrupted(f"stopped without {lost.name}: the last checkpoint is kept")
        for group in self.groups:
            if group.is_stateful and group.attempt > 0:
                try:
                    self.status(group)
                except RoleLost as also:
                    raise Interrupted(f"stopped without {lost.name}; {also}") from also

    def _call_supervisors(
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
        identities = self._call_supervisors(group, method, Nothing(), watch)
        return self.agreement.admit([peer.name for peer in group.supervisors], identities)

    def _missing_ranks(self, groups: Iterable[RoleGroup]) -> str:
        missing = [
            f"{group.name} rank {state.rank} ({state.state})"
            for group in groups
            for status in self.status(group)
            for state in status.ranks
            if state.state != "ready"
        ]
        return ", ".join(missing) or "their pods"

    def call(
        self,
        group: RoleGroup,
        method: Method[Any, Answer],
        requests: Sequence[msgspec.Struct],
        request_id: RequestId,
        ranks: Sequence[int] | None = None,
        meanwhile: Watch = None,
    ) -> list[Answer]:
        """Call some ranks of a role and wait for the answers.

        `requests` are one per rank, of the first ranks without `ranks`; `attempt` and `rewinds` of
        the id are set here. `meanwhile` is called repeatedly during the wait.

        Raises:
            RoleLost: a rank was lost, is too late, or got this id with another request.
            JobFailed: the work itself failed.
            Interrupted: the work was aborted, because the job was asked to stop.
            Fenced: another controller has taken over.
        """
        return self.gather(self.submit(group, method, requests, request_id, ranks), meanwhile)

    def submit(
        self,
        group: RoleGroup,
        method: Method[Any, Answer],
        requests: Sequence[msgspec.Struct],
        request_id: RequestId,
        ranks: Sequence[int] | None = None,
    ) -> Pending[Answer]:
        """Send the requests of `call` without waiting; follow with `gather` or `caller.cancel`.

        Until then the ranks must get no collective work together with others.
        """
        peers = [group.ranks[rank] for rank in (range(len(requests)) if ranks is None else ranks)]
        return self.caller.start(self._calls(group, method, peers, requests, request_id))

    def gather(self, pending: Pending[Answer], meanwhile: Watch = None) -> list[Answer]:
        """Wait for the answers of submitted requests; raises as `call`."""

        def watch() -> None:
            self.watch()
            for callback in (self.meanwhile, meanwhile):
                if callback is not None:
                    callback()

        try:
            return self.caller.wait(pending, watch)
        except CallTimeout as silence:
            raise RoleLost(silence.peer.role, str(silence)) from silence
        except CallRefused as refusal:
            self._raise_if_fenced(refusal)
            if refusal.kind is ErrorKind.ABORTED:
                raise Interrupted(refusal.failure.message) from refusal
            self.raise_if_lost()
            if refusal.kind in (ErrorKind.CHANNEL_LOST, ErrorKind.CHANGED):
                raise RoleLost(_dispensable(pending.calls, refusal.peer), str(refusal)) from refusal
            if refusal.kind is ErrorKind.STORAGE:
                raise StorageError(Path(refusal.peer.name), refusal.failure.message) from refusal
            if refusal.kind is ErrorKind.CUSTOM_CODE:
                raise JobFailed(refusal.failure.message) from refusal
            _log.error("%s\n%s", refusal, refusal.failure.detail)
            raise JobFailed(str(refusal)) from refusal

    def broadcast(
        self,
        group: RoleGroup,
        method: Method[Any, Answer],
        request: msgspec.Struct,
        request_id: RequestId,
    ) -> list[Answer]:
        """Send one request to all ranks of a role and wait; raises as `call`."""
        return self.broadcast_to(method, [(group, request)], request_id)

    def broadcast_to(
        self,
        method: Method[Any, Answer],
        requests: Iterable[tuple[RoleGroup, msgspec.Struct]],
        request_id: RequestId,
    ) -> list[Answer]:
        """Send each role's request to all its ranks, as one joint call; raises as `call`."""
        calls = [
            call
            for group, request in requests
            for call in self._calls(
                group, method, group.ranks, [request] * len(group.ranks), request_id
            )
        ]
        return self.gather(self.caller.start(calls))

    def submit_query(
        self, groups: Iterable[RoleGroup], method: Method[Any, Answer], question: msgspec.Struct
    ) -> Pending[Answer]:
        """Send a query to all ranks of roles, which answer it during their work; see `submit`."""
        peers = [peer for group in groups for peer in group.ranks]
        return self.caller.start([Call(peer, method, question) for peer in peers])

    def barrier(self, groups: Iterable[RoleGroup], step: int, stage: str) -> None:
        """Wait until the ranks of these roles have done all earlier requests.

        All of them must be ready; `stage` is the next stage.
        """
        # The controller's attempt is in the id: the cached answer of a predecessor's barrier says
        # nothing about requests that it sent later.
        id_ = RequestId(0, step, f"idle/{stage}/{self.caller.attempt}")
        self.broadcast_to(BARRIER, ((group, Nothing()) for group in groups), id_)

    def abort_channels(self, role: str) -> None:
        """Abort the waits of other roles on channels to a lost role."""
        peers = [
            peer
            for group in self.groups
            if group.name != role and group.attempt > 0 and group.has_channels
            for peer in group.ranks
        ]
        try:
            self.caller.call_all([Call(peer, CUT_CHANNEL, CutChannel(role)) for peer in peers])
        except (CallTimeout, CallRefused) as problem:
            _log.info("a channel to %s was not closed: %s", role, problem)

    def _raise_if_fenced(self, refusal: CallRefused) -> None:
        if refusal.kind is ErrorKind.FENCED:
            raise Fenced(str(refusal)) from refusal

    def _calls(
        self,
        group: RoleGroup,
        method: Method[Any, Answer],
        peers: Sequence[Peer],
        requests: Sequence[msgspec.Struct],
        request_id: RequestId,
    ) -> list[Call[Answer]]:
        id_ = msgspec.structs.replace(request_id, attempt=group.attempt, rewinds=self.rewinds)
        return [
            Call(peer, method, request, id_) for peer, request in zip(peers, requests, strict=True)
        ]


def _dispensable(calls: Sequence[Call[Any]], peer: Peer) -> str:
    """Return the role to restart if running roles cannot work together: the cheapest one."""
    roles = (call.peer.role for call in calls)
    return next((role for role in roles if role != "actorRollout"), peer.role)
