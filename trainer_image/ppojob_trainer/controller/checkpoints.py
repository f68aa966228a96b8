"""Checkpoints: when one is due, how ranks and controller make it, and which one is the best."""

import difflib
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from ppojob_api.problem import printable, shown
from ppojob_api.v1alpha1.schedule import BestCheckpointSpec
from ppojob_trainer.checkpoint.copies import Copies
from ppojob_trainer.checkpoint.files import FileEntry
from ppojob_trainer.checkpoint.journal import CheckpointSaved, Journal
from ppojob_trainer.checkpoint.manifest import Progress
from ppojob_trainer.checkpoint.store import CheckpointStore, PendingCheckpoint
from ppojob_trainer.controller.roles import Roles
from ppojob_trainer.errors import ConfigError, StorageError
from ppojob_trainer.rpc.messages.saving import SaveShards
from ppojob_trainer.rpc.methods import SAVE_SHARDS
from ppojob_trainer.rpc.wire import RequestId

_log = logging.getLogger(__name__)
_NAMES_TOLD: Final = 3


@dataclass(frozen=True)
class BestCheckpoint:
    """Finds the best of some steps, from the metrics alone: it has no state of its own.

    Every step that is saved is in `history`.
    """

    spec: BestCheckpointSpec
    history: Callable[[], Iterator[Mapping[str, float | None]]]

    def among(self, steps: Collection[int]) -> int | None:
        """The step with the best value; of equal ones the first; None where no step has one."""
        sign = 1.0 if self.spec.mode == "max" else -1.0
        found: tuple[float, int] | None = None
        for record in self.history():
            step, value = record["step"], record.get(self.spec.metric)  # null is not a number
            if step is None or value is None or int(step) not in steps:
                continue
            if found is None or sign * value > found[0]:
                found = (sign * value, int(step))
        return None if found is None else found[1]

    def refuse_unknown(self, validation: Mapping[str, float]) -> None:
        """Refuse a metric that no validation has: no checkpoint would ever be the best by it.

        A later validation may lack it, where a reward function does not always tell its variable.
        `validation` are the metrics of one that has no record yet.

        Raises:
            ConfigError: neither it nor an earlier one has the metric.
        """
        name = self.spec.metric
        if name in validation or any(name in record for record in self.history()):
            return
        near = ", ".join(difflib.get_close_matches(name, validation, n=_NAMES_TOLD, cutoff=0.0))
        raise ConfigError(
            printable(
                f"spec.checkpoint.best.metric: got {shown(name)}: the validation has no such "
                f"metric; one that it has, such as {near}"
            )
        )


@dataclass
class Checkpoints:
    """Makes the checkpoints of a job.

    Attributes:
        every: steps between checkpoints; None: only when asked.
        best: finds the checkpoint that stays whatever its age; None where none does.
        tell_saved: called with the step when a checkpoint is safe.
        write_ahead: writes rows that were drawn for the step behind a state; None where none are.
            It is given the state, the folder of the checkpoint, and what names this attempt.
        copies: makes copies beside the training; None where none are asked for.
    """

    roles: Roles
    store: CheckpointStore
    journal: Journal
    every: int | None
    keep_last: int
    best: BestCheckpoint | None
    tell_saved: Callable[[int], None]
    write_ahead: Callable[[Progress, str, str], list[FileEntry]] | None = None
    copies: Copies | None = None
    _failures: int = 0

    def is_due(self, progress: Progress) -> bool:
        """Whether the state after a step must be saved before the next begins."""
        if self.every is None or progress.step == 0 or progress.step % self.every:
            return False
        return not self.is_saved(progress)

    def is_saved(self, progress: Progress) -> bool:
        """Whether a whole checkpoint of this step exists."""
        return self.store.is_whole(progress.step)

    def newest(self, step: int | None = None) -> int | None:
        """Step of the newest checkpoint (up to a step, if given); None where there is none."""
        steps = (one for one in self.store.steps() if step is None or one <= step)
        return max(steps, default=None)

    def save(self, progress: Progress) -> None:
        """Save the state of all roles that are saved, and of the loop.

        Raises:
            RoleLost: a rank was lost while it wrote; earlier checkpoints are kept.
            StorageError: the disk refused; earlier checkpoints are kept, and what was
                written of this one is gone.
        """
        # The folder's name counts rewinds: ranks that still write from before one find it gone.
        pending = self.store.begin(progress.step, rewinds=self.roles.rewinds)
        try:
            files = self._write_shards(pending)
            if self.write_ahead is not None:
                folder = str(pending.folder.relative_to(self.store.root.parent))
                files += self.write_ahead(progress, folder, f"save_rows/{self._failures}")
            checkpoint = self.store.complete(pending, progress, files)
        except StorageError:
            self._clear(progress.step)
            raise
        size_bytes = sum(entry.size_bytes for entry in checkpoint.manifest.files)
        self.journal.append(
            CheckpointSaved(time=time.time(), step=progress.step, size_bytes=size_bytes)
        )
        self.tell_saved(progress.step)
        if self.copies is not None:
            self.copies.start()
        self.prune()

    def _write_shards(self, pending: PendingCheckpoint) -> list[FileEntry]:
        request = SaveShards(str(pending.folder.relative_to(self.store.root.parent)))
        # Of an attempt that failed some ranks remember an answer, and its files are gone. Only the
        # controller that made it knows, so a successor's attempts have ids of their own.
        stage = f"save_shards/{self.roles.caller.attempt}"
        id_ = RequestId(0, pending.step, stage, self._failures)
        files = []
        for group in self.roles.saved:
            answers = self.roles.ask_all(group, SAVE_SHARDS, request, id_)
            files += [
                FileEntry(
                    path=file.path,
                    size_bytes=file.size,
                    sha256=file.sha256,
                    role=file.path.split("/", 1)[0],  # the model's
                    rank=rank,
                )
                for rank, answer in enumerate(answers)
                for file in answer.files
            ]
        return files

    def _clear(self, step: int) -> None:
        """Give back the space that a failed attempt took: the steps that follow need some."""
        self._failures += 1
        self.roles.barrier(self.roles.saved, step, f"save_shards/{self._failures}")
        self.store.clear()

    def prune(self) -> None:
        """Remove checkpoints beyond those to keep; one that cannot be removed costs space."""
        best = None if self.best is None else self.best.among(self.store.steps())
        try:
            held = None if self.copies is None else self.copies.under_way
            self.store.prune(self.keep_last, best, held)
        except StorageError as problem:
            _log.warning("old checkpoints stay: %s", problem)
