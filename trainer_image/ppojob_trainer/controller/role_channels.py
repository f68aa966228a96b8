"""Transfers of rows between the ranks that own them and the ranks of another role.

The controller sends both sides the rows and columns; tensors go from rank to rank. Nothing moves
for a model in the owners' ranks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from ppojob_api.v1alpha1.reference import ReferenceSpec
from ppojob_trainer.controller.batch import Batch
from ppojob_trainer.controller.roles import RoleGroup, Roles
from ppojob_trainer.rows.batch_index import BatchIndex
from ppojob_trainer.rpc.messages.rows import (
    CHANNEL_SECONDS,
    MoveColumns,
    MoveRows,
    OpenChannel,
    PlaceRows,
)
from ppojob_trainer.rpc.methods import MOVE_COLUMNS, MOVE_ROWS, OPEN_CHANNEL, PLACE_ROWS, Method
from ppojob_trainer.rpc.wire import Nothing, RequestId


@dataclass(frozen=True)
class RoleChannels:
    """The channels of a job."""

    roles: Roles
    job_uid: str  # part of the keys of the job's rendezvous stores
    reference: ReferenceSpec | None = None  # selects the model by data source; None for one model

    def open(self, peer: RoleGroup, step: int, seconds: float = CHANNEL_SECONDS) -> None:
        """Open the channel between the current attempts of the owner and a peer, if not open.

        `seconds` is the timeout of each operation.
        """
        key = self.key(peer)
        self.call_both(
            peer,
            OPEN_CHANNEL,
            lambda role: OpenChannel(
                role=role,
                key=key,
                owners=len(self.roles.owner.ranks),
                consumers=len(peer.ranks),
                store_host=self.roles.owner.ranks[0].host,
                store_key=f"{self.job_uid}/{self.roles.owner.name}/{self.roles.owner.attempt}",
                seconds=seconds,
            ),
            RequestId(0, step, f"open_channel/{key}"),
        )

    def key(self, peer: RoleGroup) -> str:
        """Return the unique name of a channel; stores keep the keys of earlier attempts.

        A restarted controller opens new channels, since its predecessor may have reached one side
        only.
        """
        owner, opening = self.roles.owner, f"{self.roles.rewinds}.{self.roles.caller.attempt}"
        return f"{owner.name}.{owner.attempt}-{peer.name}.{peer.attempt}/{opening}"

    def call_both(
        self,
        peer: RoleGroup,
        method: Method[Any, Nothing],
        request: Callable[[str], msgspec.Struct],
        id_: RequestId,
    ) -> None:
        """Call both sides, once both are idle; `request` gets the name of the other side."""
        self.roles.barrier((self.roles.owner, peer), id_.step, id_.stage)
        requests = [(self.roles.owner, request(peer.name)), (peer, request(self.roles.owner.name))]
        self.roles.broadcast_to(method, requests, id_)

    def place_rows(self, batch: Batch, *, again: bool = False, answers: Sequence[str] = ()) -> None:
        """Send the index of the generated rows to all owners.

        With `again` it replaces an earlier one, with more metadata; `answers` as in `PlaceRows`.
        """
        origins = None
        if batch.origins is not None:
            origins = [(origin.round, origin.position) for origin in batch.origins]
        request = PlaceRows(self._index(batch), origins, again, list(answers))
        stage = "place_rows/again" if again else "place_rows"
        self.roles.broadcast(self.roles.owner, PLACE_ROWS, request, RequestId(0, batch.step, stage))

    def _index(self, batch: Batch) -> BatchIndex:
        if self.reference is None:
            return batch.index
        found = [self.reference.number_for(prompt.data_source) for prompt in batch.prompts]
        numbers = tuple(number for number in found if number is not None)
        assert len(numbers) == len(found), "data of other sources is refused"
        return msgspec.structs.replace(batch.index, teachers=numbers)

    def move_rows(self, consumer: RoleGroup, batch: Batch) -> None:
        if consumer is self.roles.owner:
            return
        self.open(consumer, batch.step)
        name, index = batch.name(self.roles.rewinds), self._index(batch)
        self.call_both(
            consumer,
            MOVE_ROWS,
            lambda role: MoveRows(role, name, index),
            RequestId(0, batch.step, f"move_rows/{self.key(consumer)}"),
        )

    def move_columns(
        self,
        consumer: RoleGroup,
        batch: Batch,
        columns: Sequence[str],
        *,
        to_owners: bool = False,
    ) -> None:
        """Move columns to a role that has the rows, or back to the owners."""
        if consumer is self.roles.owner:
            return
        index = self._index(batch)
        self.call_both(
            consumer,
            MOVE_COLUMNS,
            lambda role: MoveColumns(role, index, list(columns), to_owners),
            RequestId(0, batch.step, f"move_columns/{'-'.join(columns)}/{self.key(consumer)}"),
        )
