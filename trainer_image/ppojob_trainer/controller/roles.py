"""Role groups: the pods and ranks of each role, their liveness, and calls to them."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
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
    """The processes of one role.

    Attributes:
        ranks: in rank order.
        is_stateful: whether its loss costs the steps since the last checkpoint.
        has_channels: whether its ranks exchange rows with those of other roles.
        attempt: the attempt that the controller speaks to; 0 before the first.
        is_saved: whether a checkpoint holds state of its ranks.
    """

    name: str
    supervisors: tuple[Peer, ...]
    ranks: tuple[Peer, ...]
    is_stateful: bool
    has_channels: bool
    attempt: int = 0
    is_saved: bool = False


def role_group(topology: RoleTopology, host: Callable[[str], str], *, ahead: int) -> RoleGroup:
    """Build the group of a role in pods of its own.

    Engines that prefetch (`ahead`) hold the only copy of their weights, and rows of several steps
    if the lookahead is above one.
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

    Every wait here ends with `RoleLost` when a rank is lost or a supervisor does not answer.

    Attributes:
        groups: the roles that have pods.
        startup_seconds: longest time from `start` to ready.
        stop_requested: whether somebody asked the job to end.
        rewinds: number of rewinds; no answer from before the last one is used.
        meanwhile: called repeatedly during every wait.
    """

    caller: Caller
    groups: tuple[RoleGroup, ...]
    startup_seconds: float
    stop_requested: Callable[[], bool]
    agreement: Agreement
    rewinds: int = 0
    meanwhile: Watch = None

    @property
    def stateful(self) -> list[RoleGroup]:
        """Return the roles whose loss costs the steps since the last checkpoint."""
        return [group for group in self.groups if group.is_stateful]

    @property
    def saved(self) -> list[RoleGroup]:
        """Return the roles whose state a checkpoint holds."""
        return [group for group in self.groups if group.is_saved]

    def group(self, name: str) -> RoleGroup:
        """Return a role by its name."""
        return next(group for group in self.groups if group.name == name)

    def status(self, group: RoleGroup) -> list[PodStatus]:
        """Return the status that a role's supervisors report."""
        return self._ask_supervisors(group, STATUS, Nothing())

    def is_ready(self, group: RoleGroup) -> bool:
        """Whether all ranks of the role's attempt serve."""
        return all(s.attempt == group.attempt and s.phase == "ready" for s in self.status(group))

    def missing(self) -> list[RoleGroup]:
        """Return the roles that neither serve in their attempt nor are starting.

        Also compares the software of all other roles' pods with that of the pods to be started: a
        restarted controller has not seen them start.

        Raises:
            ConfigError: living pods do not run the same software.
        """
        found = []
        for group in self.groups:
            if group.attempt == 0 or not self._is_coming(group):
                found.append(group)
                continue
            try:
                self._admit(group, _IDENTITY_OF_LIVING, None)
            except RoleLost as slow:  # which is no reason to take its ranks
                _log.warning("%s; no other pod is compared with it", slow)
        return found

    def start(self, group: RoleGroup, attempt: int) -> None:
        """Start an attempt of a role, whose pods may have to be created first; see `wait_ready`.

        Raises:
            ConfigError: a pod does not run the same as the others; nothing of it is started.
            Interrupted: somebody asked the job to end, and nothing has to be waited for.
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
        group.attempt = attempt
        self._ask_supervisors(group, START, StartRanks(attempt), raise_if_stopping)

    def wait_ready(self, *, may_stop: bool) -> None:
        """Wait until all ranks of all roles serve.

        Args:
            may_stop: whether a job that is asked to end does so here; not where other ranks hold
                a step that is neither done nor in a checkpoint.

        Raises:
            RoleLost: a rank ended while starting.
            JobFailed: it takes longer than the limit; names the ranks that are missing.
            Interrupted: somebody asked the job to end.
        """
        deadline = time.monotonic() + self.startup_seconds
        waiting = list(self.groups)
        while waiting:
            if may_stop and self.stop_requested():
                raise Interrupted("asked to end while the roles were starting")
            self.watch()
            waiting = [group for group in waiting if not self.is_ready(group)]
            if waiting and time.monotonic() > deadline:
                raise JobFailed(
                    f"spec.timeouts.startupSeconds: {self.startup_seconds:g} s are over and "
                    f"{self._missing_ranks(waiting)} do not serve; raise the limit or see their "
                    "logs"
                )
            if waiting:
                time.sleep(_POLL_SECONDS)

    def watch(self) -> None:
        """Poll all supervisors once.

        Raises:
            RoleLost: a role lost a rank, or a supervisor does not answer.
            ConfigError: a rank refused its input, and would again.
        """
        for group in self.groups:
            if group.attempt == 0:
                continue
            for status in self.status(group):
                if status.attempt < group.attempt:
                    raise RoleLost(group.name, f"pod {status.pod}: it began anew, without ranks")
                if status.phase != "lost":
                    continue
                if status.exit_code == contract.EXIT_INVALID:
                    raise ConfigError(status.reason)
                raise RoleLost(group.name, f"pod {status.pod}: {status.reason}")

    def raise_if_lost(self) -> None:
        """Poll for a while for a lost rank: another rank may have failed only because of it.

        Raises:
            RoleLost: a rank was lost.
        """
        deadline = time.monotonic() + _LOSS_GRACE_SECONDS
        while time.monotonic() < deadline:
            self.watch()
            time.sleep(_POLL_SECONDS)

    def _is_coming(self, group: RoleGroup) -> bool:
        coming = ("starting", "ready")
        return all(s.attempt == group.attempt and s.phase in coming for s in self.status(group))

    def _raise_if_stopping(self, lost: RoleGroup) -> None:
        """End a job that was asked to end and waits for a role, if no rank holds an unsaved step.

        A job that is deleted loses all its pods at once, and none of them comes back.
        """
        if not self.stop_requested():
            return
        if lost.is_stateful:
            raise Interrupted(f"asked to end without {lost.name}: the last checkpoint stands")
        for group in self.groups:
            if group.is_stateful and group.attempt > 0:
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
        """Call some ranks of a role, and wait for all answers.

        Each of `ranks`, by default the first ones, gets one request; `attempt` and `rewinds` of the
        id are filled in here. `meanwhile` is called repeatedly.

        Raises:
            RoleLost: a rank was lost meanwhile, does not answer in time, or was told otherwise.
            JobFailed: the work itself failed, and would again.
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
        """Send requests to some ranks of a role without waiting; the first half of `ask`.

        Other requests meanwhile must not be collective with this one. A caller that does not
        `collect` the answers calls `caller.give_up`.
        """
        peers = [group.ranks[rank] for rank in (range(len(requests)) if ranks is None else ranks)]
        return self.caller.start(self._calls(group, method, peers, requests, request_id))

    def gather(self, begun: Pending[Answer], meanwhile: Watch = None) -> list[Answer]:
        """Wait for the answers of begun requests; raises as `ask`."""

        def watch() -> None:
            self.watch()
            for act in (self.meanwhile, meanwhile):
                if act is not None:
                    act()

        try:
            return self.caller.wait(begun, watch)
        except CallTimeout as silence:
            raise RoleLost(silence.peer.role, str(silence)) from silence
        except CallRefused as refusal:
            self._raise_if_fenced(refusal)
            self.raise_if_lost()
            if refusal.kind in (ErrorKind.CHANNEL_LOST, ErrorKind.CHANGED):
                raise RoleLost(_dispensable(begun.calls, refusal.peer), str(refusal)) from refusal
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
        """Send one request to all ranks of a role; raises as `ask`."""
        return self.broadcast_to(method, [(group, request)], request_id)

    def broadcast_to(
        self,
        method: Method[Any, Answer],
        asked: Iterable[tuple[RoleGroup, msgspec.Struct]],
        request_id: RequestId,
    ) -> list[Answer]:
        """Send all ranks of several roles one joint piece of work; raises as `ask`.

        `asked` has for each role the request that each of its ranks gets.
        """
        calls = [
            call
            for group, request in asked
            for call in self._calls(
                group, method, group.ranks, [request] * len(group.ranks), request_id
            )
        ]
        return self.gather(self.caller.start(calls))

    def submit_query(
        self, groups: Iterable[RoleGroup], method: Method[Any, Answer], question: msgspec.Struct
    ) -> Pending[Answer]:
        """Begin a question that all ranks of roles answer beside their work; see `begin`."""
        peers = [peer for group in groups for peer in group.ranks]
        return self.caller.start([Call(peer, method, question) for peer in peers])

    def barrier(self, groups: Iterable[RoleGroup], step: int, stage: str) -> None:
        """Wait until the ranks of these roles have done all earlier requests.

        All of them serve; `stage` is the next stage.
        """
        # A restarted controller does not know its predecessor's requests, so the answer to the
        # predecessor's barrier must not count as the answer to its own.
        id_ = RequestId(0, step, f"idle/{stage}/{self.caller.attempt}")
        self.broadcast_to(BARRIER, ((group, Nothing()) for group in groups), id_)

    def abort_channels(self, role: str) -> None:
        """Abort waits on channels to a lost role, at its peers."""
        peers = [
            peer
            for group in self.groups
            if group.name != role and group.attempt > 0 and group.has_channels
            for peer in group.ranks
        ]
        try:
            self.caller.call_all([Call(peer, CUT_CHANNEL, CutChannel(role)) for peer in peers])
        except (CallTimeout, CallRefused) as problem:
            _log.info("a channel to %s was not cut: %s", role, problem)

    def _raise_if_fenced(self, refusal: CallRefused) -> None:
        """Raise `Fenced` where a call was refused because another controller has taken over."""
        if refusal.kind is ErrorKind.FENCED:
            attempt = self.caller.attempt
            raise Fenced(refusal.peer.role, attempt, attempt + 1) from refusal

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
    """Return the role to restart if living roles cannot work together: the cheapest one."""
    roles = (call.peer.role for call in calls)
    return next((role for role in roles if role != "actorRollout"), peer.role)
