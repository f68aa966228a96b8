"""Work that the controller gives to the ranks of roles."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ppojob_trainer.controller.role_group import RoleGroup
from ppojob_trainer.controller.supervisors import Supervisors, raise_if_fenced
from ppojob_trainer.errors import JobFailed, RoleLost, StorageError
from ppojob_trainer.rpc.client import Call, Caller, CallRefused, CallTimeout, Peer, Pending
from ppojob_trainer.rpc.messages.rows import CutChannel
from ppojob_trainer.rpc.methods import BARRIER, CUT_CHANNEL, Method
from ppojob_trainer.rpc.wire import ErrorKind, Nothing, RequestId

Answer = TypeVar("Answer", bound=msgspec.Struct)
_log = logging.getLogger(__name__)


@dataclass
class Roles:
    """Asks the ranks of roles; whatever waits here ends with `RoleLost` when a rank is lost.

    Attributes:
        supervisors: know which ranks live.
        rewinds: how often the job went back to a commit: what was done before the last is no
            answer in this one.
    """

    supervisors: Supervisors
    rewinds: int = 0

    @property
    def caller(self) -> Caller:
        """Makes the calls."""
        return self.supervisors.caller

    @property
    def groups(self) -> tuple[RoleGroup, ...]:
        """The roles that have pods."""
        return self.supervisors.groups

    def group(self, name: str) -> RoleGroup:
        """One role by its name."""
        return next(group for group in self.groups if group.name == name)

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
            return self.caller.wait(begun, self.supervisors.watch)
        except CallTimeout as silence:
            raise RoleLost(silence.peer.role, str(silence)) from silence
        except CallRefused as refusal:
            raise_if_fenced(refusal, self.caller)
            self.supervisors.raise_loss_first()
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
        return self._ask_each(method, [(group, request)], request_id)

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
        self._ask_each(method, zip(groups, requests, strict=True), request_id)

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
        self._ask_each(BARRIER, ((group, Nothing()) for group in groups), id_)

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

    def _ask_each(
        self,
        method: Method[Any, Answer],
        asked: Iterable[tuple[RoleGroup, msgspec.Struct]],
        request_id: RequestId,
    ) -> list[Answer]:
        """Have all ranks of roles do one piece of work together."""
        calls = [
            call
            for group, request in asked
            for call in self._calls(
                group, method, group.ranks, [request] * len(group.ranks), request_id
            )
        ]
        return self.collect(self.caller.start(calls))


def _dispensable(calls: Sequence[Call[Any]], peer: Peer) -> str:
    """Of the roles that work cannot go on between though all live, the one that costs least."""
    roles = (call.peer.role for call in calls)
    return next((role for role in roles if role != "actorRollout"), peer.role)
