"""Row transfers between the ranks that own rows and the ranks of another role.

The controller names the two ends, the rows and the columns; the tensors go from rank to rank. A
model in the owners' ranks has the rows already, so nothing moves.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from ppojob_api.v1alpha1.reference import ReferenceSpec
from ppojob_trainer.controller.batch import Batch
from ppojob_trainer.controller.roles import RoleGroup, Roles
from ppojob_trainer.rows.batch_index import BatchIndex
from ppojob_trainer.rpc.client import Call
from ppojob_trainer.rpc.messages.rows import (
    CHANNEL_SECONDS,
    BatchName,
    MoveColumns,
    MoveRows,
    OpenChannel,
    PlaceRows,
)
from ppojob_trainer.rpc.methods import MOVE_COLUMNS, MOVE_ROWS, OPEN_CHANNEL, PLACE_ROWS, Method
from ppojob_trainer.rpc.wire import Nothing, RequestId

Answer = TypeVar("Answer", bound=msgspec.Struct)


@dataclass(frozen=True)
class RoleChannels:
    """The channels of a job.

    Attributes:
        owner: the role whose ranks own the rows.
        job_uid: part of the names of the job's rendezvous stores.
        reference: reference models by data source; None if there is one for all.
    """

    roles: Roles
    owner: RoleGroup
    job_uid: str
    reference: ReferenceSpec | None = None

    def open(self, peer: RoleGroup, step: int, seconds: float = CHANNEL_SECONDS) -> None:
        """Open the channel between the present attempts of the owner and a peer, unless it is open.

        `seconds` limits each operation on it.
        """
        key = self.key(peer)
        self.call_both(
            peer,
            OPEN_CHANNEL,
            lambda role: OpenChannel(
                role=role,
                key=key,
                owners=len(self.owner.ranks),
                consumers=len(peer.ranks),
                store_host=self.owner.ranks[0].host,
                store_key=f"{self.job_uid}/{self.owner.name}/{self.owner.attempt}",
                seconds=seconds,
            ),
            RequestId(0, step, f"open_channel/{key}"),
        )

    def key(self, peer: RoleGroup) -> str:
        """Name a channel; never used twice, since a store keeps the keys of earlier attempts.

        A restarted controller opens new channels: it does not know whether its predecessor reached
        both sides.
        """
        opening = f"{self.roles.rewinds}.{self.roles.caller.attempt}"
        return f"{self.owner.name}.{self.owner.attempt}-{peer.name}.{peer.attempt}/{opening}"

    def call_both(
        self,
        peer: RoleGroup,
        method: Method[Any, Nothing],
        request: Callable[[str], msgspec.Struct],
        id_: RequestId,
    ) -> None:
        """Ask both sides, each with the name of the other, once both are idle."""
        self.roles.barrier((self.owner, peer), id_.step, id_.stage)
        asked = [(self.owner, request(peer.name)), (peer, request(self.owner.name))]
        self.roles.broadcast_to(method, asked, id_)

    def query_owners(
        self, question: Method[Any, Answer], request: msgspec.Struct, ranks: Iterable[int]
    ) -> list[Answer]:
        """Ask some owners a question that changes nothing, whatever they work on.

        Raises:
            RoleLost: one does not answer.
        """
        calls = [Call(self.owner.ranks[rank], question, request) for rank in ranks]
        return self.roles.gather(self.roles.caller.start(calls))

    def place_rows(
        self, batch: Batch, step: int, *, again: bool = False, answers: Sequence[str] = ()
    ) -> None:
        """Send the index of the generated rows to all owners.

        `again`: they have it already, and the batch has more metadata now; `answers`: see
        `PlaceRows`.
        """
        origins = None
        if batch.origins is not None:
            origins = [(origin.round, origin.position) for origin in batch.origins]
        request = PlaceRows(self._index(batch), origins, again, list(answers))
        stage = "place_rows/again" if again else "place_rows"
        self.roles.broadcast(self.owner, PLACE_ROWS, request, RequestId(0, step, stage))

    def _index(self, batch: Batch) -> BatchIndex:
        """Build the row index: rows, owners, and the reference model of each."""
        if self.reference is None:
            return batch.index
        found = [self.reference.number_for(prompt.data_source) for prompt in batch.prompts]
        numbers = tuple(number for number in found if number is not None)
        assert len(numbers) == len(found), "data is refused that no model reads"
        return msgspec.structs.replace(batch.index, teachers=numbers)

    def move_rows(self, consumer: RoleGroup, batch: Batch, step: int) -> None:
        """Move the rows to a role, over a channel between the present attempts of both."""
        if consumer is self.owner:
            return
        self.open(consumer, step)
        name = BatchName(self.roles.rewinds, step, batch.purpose)
        index = self._index(batch)
        self.call_both(
            consumer,
            MOVE_ROWS,
            lambda role: MoveRows(role, name, index),
            RequestId(0, step, f"move_rows/{self.key(consumer)}"),
        )

    def move_columns(
        self,
        consumer: RoleGroup,
        batch: Batch,
        step: int,
        columns: Sequence[str],
        *,
        to_owners: bool = False,
    ) -> None:
        """Move columns to a role that has the rows, or computed columns back to the owners."""
        if consumer is self.owner:
            return
        index = self._index(batch)
        self.call_both(
            consumer,
            MOVE_COLUMNS,
            lambda role: MoveColumns(role, index, list(columns), to_owners),
            RequestId(0, step, f"move_columns/{'-'.join(columns)}/{self.key(consumer)}"),
        )
