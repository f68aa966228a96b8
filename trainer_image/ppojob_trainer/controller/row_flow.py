"""The way of the rows between roles: from their owners to a model in ranks of its own, and back.

The controller names the rows and the columns; the tensors go from rank to rank. A model that lives
in the owners' ranks has the rows already, and nothing moves.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ppojob_trainer.controller.batch import Batch
from ppojob_trainer.controller.role_group import RoleGroup
from ppojob_trainer.controller.roles import Roles
from ppojob_trainer.rpc.messages.rows import (
    BatchName,
    MoveColumns,
    MoveRows,
    OpenChannel,
    PlaceRows,
)
from ppojob_trainer.rpc.methods import (
    MOVE_COLUMNS,
    MOVE_ROWS,
    OPEN_CHANNEL,
    PLACE_ROWS,
    Method,
)
from ppojob_trainer.rpc.wire import Nothing, RequestId


@dataclass(frozen=True)
class RowFlow:
    """Moves the train rows of a step.

    Attributes:
        roles: the processes of the job.
        owner: the role whose ranks own the rows.
        job_uid: identity of the job, part of the names of its stores.
    """

    roles: Roles
    owner: RoleGroup
    job_uid: str

    def place(self, batch: Batch, step: int) -> None:
        """Tell all owners which rows there are, now that they have been generated."""
        origins = None
        if batch.origins is not None:
            origins = [(origin.round, origin.position) for origin in batch.origins]
        request = PlaceRows(batch.index, origins)
        self.roles.ask_all(self.owner, PLACE_ROWS, request, RequestId(0, step, "place_rows"))

    def bring_rows(self, consumer: RoleGroup, batch: Batch, step: int) -> None:
        """Bring the rows to a role, over a channel between the present epochs of both."""
        if consumer is self.owner:
            return
        key = self._key(consumer)
        self._ask_both(
            consumer,
            OPEN_CHANNEL,
            lambda role: OpenChannel(
                role=role,
                key=key,
                owners=len(self.owner.ranks),
                consumers=len(consumer.ranks),
                store_host=self.owner.ranks[0].host,
                store_key=f"{self.job_uid}/{self.owner.name}/{self.owner.epoch}",
            ),
            RequestId(0, step, f"open_channel/{key}"),
        )
        name = BatchName(self.roles.rewinds, step, batch.purpose)
        index = batch.index
        self._ask_both(
            consumer,
            MOVE_ROWS,
            lambda role: MoveRows(role, name, index),
            RequestId(0, step, f"move_rows/{key}"),
        )

    def bring_columns(
        self, consumer: RoleGroup, batch: Batch, step: int, columns: Sequence[str]
    ) -> None:
        """Bring further columns of the rows to a role that has them."""
        self._move_columns(consumer, batch, step, columns, to_owners=False)

    def take_columns(
        self, consumer: RoleGroup, batch: Batch, step: int, columns: Sequence[str]
    ) -> None:
        """Bring columns that a role has filled in to the owners of the rows."""
        self._move_columns(consumer, batch, step, columns, to_owners=True)

    def _move_columns(
        self,
        consumer: RoleGroup,
        batch: Batch,
        step: int,
        columns: Sequence[str],
        *,
        to_owners: bool,
    ) -> None:
        if consumer is self.owner:
            return
        index = batch.index
        stage = f"move_columns/{'-'.join(columns)}/{self._key(consumer)}"
        self._ask_both(
            consumer,
            MOVE_COLUMNS,
            lambda role: MoveColumns(role, index, list(columns), to_owners),
            RequestId(0, step, stage),
        )

    def _key(self, consumer: RoleGroup) -> str:
        """Names a channel; never used twice, since a store keeps what an attempt has left.

        A controller that came back opens channels anew: it does not know what its predecessor
        told one side and not the other.
        """
        attempt = f"{self.roles.rewinds}.{self.roles.caller.epoch}"
        return f"{self.owner.name}.{self.owner.epoch}-{consumer.name}.{consumer.epoch}/{attempt}"

    def _ask_both(
        self, consumer: RoleGroup, method: Method[Any, Nothing], request: Any, id_: RequestId
    ) -> None:
        """Tell each side with the name of the other, when both have their hands free.

        The time limit of a channel covers moving one bucket, never somebody's computing.
        """
        self.roles.barrier((self.owner, consumer), id_.step, id_.stage)
        self.roles.ask_both(
            (self.owner, consumer), method, (request(consumer.name), request(self.owner.name)), id_
        )
