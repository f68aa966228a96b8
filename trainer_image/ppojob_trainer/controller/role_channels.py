"""Channels between the ranks that own rows and those of another role, as the controller asks for.

It names both ends and what goes over; tensors go from rank to rank.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from ppojob_trainer.controller.role_group import RoleGroup
from ppojob_trainer.controller.roles import Roles
from ppojob_trainer.rpc.client import Call
from ppojob_trainer.rpc.messages.rows import CHANNEL_SECONDS, OpenChannel
from ppojob_trainer.rpc.methods import OPEN_CHANNEL, Method
from ppojob_trainer.rpc.wire import Nothing, RequestId

Answer = TypeVar("Answer", bound=msgspec.Struct)


@dataclass(frozen=True)
class RoleChannels:
    """The channels of a job.

    Attributes:
        roles: the processes of the job.
        owner: the role whose ranks own the rows.
        job_uid: identity of the job, part of the names of its stores.
    """

    roles: Roles
    owner: RoleGroup
    job_uid: str

    def open(self, peer: RoleGroup, step: int, seconds: float = CHANNEL_SECONDS) -> None:
        """Open the channel between the present epochs of the owner and a peer, unless it is.

        Args:
            peer: the other role.
            step: of the loop.
            seconds: limit of one operation on it.
        """
        key = self.key(peer)
        self.ask_both(
            peer,
            OPEN_CHANNEL,
            lambda role: OpenChannel(
                role=role,
                key=key,
                owners=len(self.owner.ranks),
                consumers=len(peer.ranks),
                store_host=self.owner.ranks[0].host,
                store_key=f"{self.job_uid}/{self.owner.name}/{self.owner.epoch}",
                seconds=seconds,
            ),
            RequestId(0, step, f"open_channel/{key}"),
        )

    def key(self, peer: RoleGroup) -> str:
        """Names a channel; never used twice, since a store keeps what an attempt has left.

        A controller that came back opens channels anew: it does not know what its predecessor
        told one side and not the other.
        """
        attempt = f"{self.roles.rewinds}.{self.roles.caller.epoch}"
        return f"{self.owner.name}.{self.owner.epoch}-{peer.name}.{peer.epoch}/{attempt}"

    def ask_both(
        self,
        peer: RoleGroup,
        method: Method[Any, Nothing],
        request: Callable[[str], msgspec.Struct],
        id_: RequestId,
    ) -> None:
        """Tell each side with the name of the other, when both have their hands free."""
        self.roles.barrier((self.owner, peer), id_.step, id_.stage)
        requests = (request(peer.name), request(self.owner.name))
        self.roles.ask_both((self.owner, peer), method, requests, id_)

    def ask_owners(
        self, question: Method[Any, Answer], request: msgspec.Struct, ranks: Iterable[int]
    ) -> list[Answer]:
        """Ask some of the owners something that changes nothing, whatever they do meanwhile.

        Raises:
            RoleLost: one does not answer.
        """
        calls = [Call(self.owner.ranks[rank], question, request) for rank in ranks]
        return self.roles.collect(self.roles.caller.start(calls))
