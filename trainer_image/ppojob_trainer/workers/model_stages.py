"""The stages of models that live in a rank: passes, updates, commits, on the rows of the step."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ppojob_trainer.metrics.pass_statistics import PassStatistics
from ppojob_trainer.parallel.dims import WITHIN
from ppojob_trainer.parallel.link import GroupLink
from ppojob_trainer.rows.batch_index import BatchIndex
from ppojob_trainer.rows.experience import Experience
from ppojob_trainer.rpc import methods
from ppojob_trainer.rpc.messages.rows import (
    BatchName,
    MoveColumns,
    MoveRows,
)
from ppojob_trainer.rpc.messages.saving import Restore, Saved, SaveShards
from ppojob_trainer.rpc.messages.training import Forward, Update
from ppojob_trainer.rpc.server import Route
from ppojob_trainer.rpc.wire import Nothing
from ppojob_trainer.workers.batch_rows import BatchRows
from ppojob_trainer.workers.learner import Learner
from ppojob_trainer.workers.reference import FollowingReference
from ppojob_trainer.workers.row_channels import RowChannels, batch_index


class StageModel(Protocol):
    """A model that has something to say of rows."""

    def forward(self, rows: BatchRows) -> PassStatistics:
        """Fill in the model's column; answers what all ranks have measured on the way."""
        ...


class TrainedModel(StageModel, Protocol):
    """A model that learns from them."""

    learner: Learner

    def update(self, rows: BatchRows, request: Update) -> PassStatistics:
        """One optimizer step; answers what all ranks have measured."""
        ...


@dataclass
class ModelStages:
    """Answers the stages of the models of a rank, all ranks of the role together.

    Attributes:
        run_folder: what paths in requests are relative to.
        channels: to other roles.
        frozen: models by the names that requests use.
        trained: likewise.
        following: the reference, where it takes over weights of the policy; one of the frozen ones.
        make_room: called before they compute, each time: gives them the device's memory.
    """

    run_folder: Path
    channels: RowChannels
    frozen: dict[str, StageModel] = field(default_factory=dict)
    trained: dict[str, TrainedModel] = field(default_factory=dict)
    following: FollowingReference | None = None
    make_room: Callable[[], None] = lambda: None
    _rows: BatchRows | None = None
    _visiting: BatchName | None = None  # whose rows they are, where others own them

    def routes(self) -> list[Route]:
        """The methods of every rank that holds a model."""
        return [
            Route(methods.BARRIER, lambda _: Nothing()),
            Route(methods.RESTORE, self._restore),
            *self.channels.routes(),
            Route(methods.MOVE_ROWS, self._move_rows),
            Route(methods.MOVE_COLUMNS, self._move_columns),
            Route(methods.FORWARD, self._forward),
            Route(methods.UPDATE, self._update),
            Route(methods.SAVE_SHARDS, self._save_shards),
        ]

    @property
    def rows(self) -> BatchRows:
        """The train rows of the step."""
        assert self._rows is not None, "rows come before what is done with them"
        return self._rows

    def place(self, index: BatchIndex, mine: Experience) -> None:
        """Take up the rows of a step.

        Args:
            index: of all rows at the ranks of this role.
            mine: those of this rank.
        """
        world = self.channels.world
        link = GroupLink(world.group, world.device)
        within = GroupLink(world.along(*WITHIN), world.device)
        self._rows = BatchRows(index, mine, link, self.channels.costs, world.dims, within)

    def _restore(self, request: Restore) -> Nothing:
        self.make_room()
        self._rows = self._visiting = None
        folder = None if request.folder is None else self.run_folder / request.folder
        if self.following is not None:
            self.following.restore(folder, request.files)
        # Behind what else is loaded: a learner restores the random state.
        for name, model in self.trained.items():
            model.learner.restore(folder, request.files, request.total_updates[name])
        return Nothing()

    def _move_rows(self, request: MoveRows) -> Nothing:
        mine = self.rows.mine if self.channels.owns_rows else None
        index, moved = self.channels.move_rows(request.role, batch_index(request.index), mine)
        # A controller that came back has the rows of its step moved again. A pass over them that is
        # done stays done, so what it has filled in stays as well.
        if not self.channels.owns_rows and self._visiting != request.batch:
            self.place(index, moved)
            self._visiting = request.batch
        return Nothing()

    def _move_columns(self, request: MoveColumns) -> Nothing:
        self.channels.move_columns(request, batch_index(request.index), self.rows.mine)
        return Nothing()

    def _forward(self, request: Forward) -> PassStatistics:
        self.make_room()
        model = self.trained.get(request.model) or self.frozen[request.model]
        return model.forward(self.rows)

    def _update(self, request: Update) -> PassStatistics:
        self.make_room()
        return self.trained[request.model].update(self.rows, request)

    def _save_shards(self, request: SaveShards) -> Saved:
        folder = self.run_folder / request.folder
        files = [file for model in self.trained.values() for file in model.learner.save(folder)]
        if self.following is not None:
            files += self.following.save(folder)
        return Saved(files)
