"""The way of the rows between roles: from their owners to a model in ranks of its own, and back.

The controller names the rows and the columns; the tensors go from rank to rank. A model that lives
in the owners' ranks has the rows already, and nothing moves.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ppojob_trainer.controller.batch import Batch
from ppojob_trainer.controller.role_channels import RoleChannels
from ppojob_trainer.controller.role_group import RoleGroup
from ppojob_trainer.controller.roles import Roles
from ppojob_trainer.rpc.messages.rows import BatchName, MoveColumns, MoveRows, PlaceRows
from ppojob_trainer.rpc.methods import MOVE_COLUMNS, MOVE_ROWS, PLACE_ROWS
from ppojob_trainer.rpc.wire import RequestId


@dataclass(frozen=True)
class RowFlow:
    """Moves the train rows of a step.

    Attributes:
        channels: between the ranks that own the rows and the others.
    """

    channels: RoleChannels

    @property
    def roles(self) -> Roles:
        """The processes of the job."""
        return self.channels.roles

    @property
    def owner(self) -> RoleGroup:
        """The role whose ranks own the rows."""
        return self.channels.owner

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
        self.channels.open(consumer, step)
        name = BatchName(self.roles.rewinds, step, batch.purpose)
        index = batch.index
        self.channels.ask_both(
            consumer,
            MOVE_ROWS,
            lambda role: MoveRows(role, name, index),
            RequestId(0, step, f"move_rows/{self.channels.key(consumer)}"),
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
        stage = f"move_columns/{'-'.join(columns)}/{self.channels.key(consumer)}"
        self.channels.ask_both(
            consumer,
            MOVE_COLUMNS,
            lambda role: MoveColumns(role, index, list(columns), to_owners),
            RequestId(0, step, stage),
        )
