"""Checkpoint scheduling: when one is due, how ranks and controller write it, which one is best.

For a background checkpoint the ranks copy their state, and write the copy during the next steps. It
counts once it is complete: `look` polls for that while the controller waits for work; `settle`
blocks until then.
"""

import difflib
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ppojob_api.problem import printable, shown
from ppojob_api.v1alpha1.schedule import BestCheckpointSpec
from ppojob_trainer.checkpoint.copies import Copies
from ppojob_trainer.checkpoint.journal import (
    CheckpointBegun,
    CheckpointLeft,
    CheckpointSaved,
    Journal,
)
from ppojob_trainer.checkpoint.manifest import Progress
from ppojob_trainer.checkpoint.store import CheckpointStore, PendingCheckpoint
from ppojob_trainer.controller.journal_state import JournalState, without_tables
from ppojob_trainer.controller.roles import Roles
from ppojob_trainer.errors import ConfigError, DamagedCheckpoint, RoleLost, StorageError
from ppojob_trainer.rpc.client import Pending
from ppojob_trainer.rpc.messages.saving import AskWritten, FileEntry, Saved, SaveShards, Written
from ppojob_trainer.rpc.methods import SAVE_SHARDS, SHARDS_WRITTEN
from ppojob_trainer.rpc.wire import RequestId

_log = logging.getLogger(__name__)
_NAMES_TOLD: Final = 3
_LOOK_SECONDS: Final = 1.0
_POLL_SECONDS: Final = 0.05


@dataclass(frozen=True)
class BestCheckpoint:
    """Finds the best checkpoint from the metrics alone; it has no state of its own.

    Every saved step is in `history`.
    """

    spec: BestCheckpointSpec
    history: Callable[[], Iterator[Mapping[str, float | None]]]

    def among(self, steps: Collection[int]) -> int | None:
        """Return the step with the best value, the first of equal ones; None if no step has one."""
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
        """Refuse a metric that no validation reports: no checkpoint could ever be the best by it.

        A later validation may lack it, if a reward function does not always return its variable.
        `validation` has the metrics of a validation that has no record yet.

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
class _InFlight:
    """A background checkpoint that ranks still write; its `files` so far are on disk."""

    pending: PendingCheckpoint
    progress: Progress
    files: list[FileEntry]
    rewinds: int
    asked: Pending[Written] | None = None
    look_at: float = 0.0
    is_refused: bool = False


@dataclass
class Checkpoints:
    """Writes the checkpoints of a job.

    Attributes:
        every: steps between checkpoints; None: only on request.
        best: finds the checkpoint that is kept whatever its age; None without one.
        tell_saved: called with the step once a checkpoint is complete.
        write_ahead: writes the prefetched rows of the next step; None without prefetch. Its
            arguments are the state, the checkpoint folder and the name of this attempt.
        copies: copies checkpoints elsewhere during training; None if no copies are requested.
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
    _begun: _InFlight | None = None
    _left: tuple[int, int] | None = None  # rewinds, and the step that the job resumed from

    @property
    def under_way(self) -> int | None:
        """Return the step whose checkpoint ranks write in the background, or None."""
        return None if (one := self._current()) is None else one.pending.step

    @property
    def is_refused(self) -> bool:
        """Whether a disk refused the background checkpoint; `settle` raises the error."""
        return (one := self._current()) is not None and one.is_refused

    def is_due(self, progress: Progress) -> bool:
        """Whether the state after a step must be saved before the next step begins."""
        if self.every is None or progress.step == 0 or progress.step % self.every:
            return False
        if self.under_way == progress.step or self._left == (self.roles.rewinds, progress.step):
            return False
        return not self.is_saved(progress)

    def is_saved(self, progress: Progress) -> bool:
        """Whether a complete checkpoint of this step exists."""
        return self.store.is_whole(progress.step)

    def newest(self, step: int | None = None) -> int | None:
        """Return the step of the newest checkpoint (at most `step`, if given), or None."""
        steps = (one for one in self.store.steps() if step is None or one <= step)
        return max(steps, default=None)

    def save(self, progress: Progress, *, in_background: bool = False) -> None:
        """Save the state of all saved roles and of the loop; no background write may be in flight.

        In the background this only begins: ranks have copied what they will write.

        Raises:
            RoleLost: a rank was lost while it wrote; earlier checkpoints are kept.
            StorageError: the disk refused; earlier checkpoints are kept, and what was written of
                this one is removed.
        """
        # Ranks may still write a checkpoint that a killed controller requested.
        self.roles.barrier(self.roles.saved, progress.step, f"save_shards/{self._failures}")
        # The folder's name counts rewinds: ranks that still write from before one find it gone.
        rewinds = self.roles.rewinds
        pending = self.store.begin(progress.step, rewinds=rewinds)
        try:
            files = self._write_shards(pending, in_background=in_background)
            if self.write_ahead is not None:
                act = f"save_rows/{self._failures}"
                files += self.write_ahead(progress, self._place(pending), act)
            if not in_background:
                self._complete(pending, progress, files)
                return
            told = without_tables(progress)
            self.journal.append(
                CheckpointBegun(time=time.time(), progress=told, files=tuple(files))
            )
            self._begun = _InFlight(pending, progress, files, rewinds)
        except StorageError:
            self._failures += 1
            self.roles.barrier(self.roles.saved, progress.step, f"save_shards/{self._failures}")
            # Free the space that the attempt used: the next steps need some.
            self.store.clear()
            raise

    def look(self) -> None:
        """Complete the background checkpoint once it is written; costs no time while ranks work."""
        one = self._current()
        if one is None or one.is_refused or time.monotonic() < one.look_at:
            return
        if one.asked is None:
            one.asked = self._ask(one)
        elif one.asked.is_done:
            asked, one.asked = one.asked, None
            one.look_at = time.monotonic() + _LOOK_SECONDS
            one.is_refused = asked.refusal is not None or any(a.refusal for a in asked.answers)
            if not one.is_refused and all(a.files is not None for a in asked.answers):
                try:
                    self._complete(one.pending, one.progress, one.files + _files(asked.answers))
                    self._begun = None
                except (StorageError, DamagedCheckpoint):
                    one.is_refused = True

    def settle(self) -> None:
        """Wait until the background checkpoint is written, and complete it.

        Raises:
            RoleLost: a rank was lost meanwhile.
            StorageError: the disk refused; what was written is removed.
        """
        one = self._current()
        if one is None:
            return
        self._give_up()
        try:
            files = self._written(one)
            self._complete(one.pending, one.progress, one.files + files)
        except RoleLost:
            self._begun = one
            raise
        except (StorageError, DamagedCheckpoint) as problem:
            self._failures += 1
            self.store.clear()
            if isinstance(problem, DamagedCheckpoint):  # removed with a failed attempt
                raise StorageError(one.pending.folder, str(problem)) from problem
            raise

    def leave(self, step: int) -> None:
        """Continue after a step without its checkpoint: the ranks no longer have that state."""
        self.journal.append(CheckpointLeft(time=time.time(), step=step))
        self._left = self.roles.rewinds, step

    def take_over(self, position: JournalState) -> None:
        """Take over an earlier controller's background checkpoint, whose ranks are alive."""
        rewinds = self.roles.rewinds
        self._left = None if position.left is None else (rewinds, position.left)
        if (begun := position.begun) is not None:
            pending = self.store.begin(begun.progress.step, rewinds=rewinds)
            self._begun = _InFlight(pending, begun.progress, list(begun.files), rewinds)

    def _current(self) -> _InFlight | None:
        """Return the background checkpoint, after giving up one from before a rewind."""
        if self._begun is not None and self._begun.rewinds != self.roles.rewinds:
            self._give_up()
        return self._begun

    def _give_up(self) -> None:
        if self._begun is not None and self._begun.asked is not None:
            self.roles.caller.give_up(self._begun.asked)
            self._begun.asked = None
        self._begun = None

    def _ask(self, one: _InFlight) -> Pending[Written]:
        question = AskWritten(self._place(one.pending))
        return self.roles.begin_asking(self.roles.saved, SHARDS_WRITTEN, question)

    def _written(self, one: _InFlight) -> list[FileEntry]:
        """Wait until each rank has written its files or was refused; return the files."""
        limit = self.roles.caller.default_deadline_seconds
        deadline = time.monotonic() + limit
        while True:
            asked = self._ask(one)
            told = list(zip(asked.calls, self.roles.collect(asked), strict=True))
            waiting = [call.peer for call, a in told if a.files is None and not a.refusal]
            if not waiting:
                break
            if time.monotonic() > deadline:
                late = f"{waiting[0].name}: no part of a checkpoint within {limit:g} s"
                raise RoleLost(waiting[0].role, late)
            time.sleep(_POLL_SECONDS)
        for call, answer in told:
            if answer.refusal:
                raise StorageError(Path(call.peer.name), answer.refusal)
        return _files(answer for _, answer in told)

    def _complete(
        self, pending: PendingCheckpoint, progress: Progress, files: list[FileEntry]
    ) -> None:
        checkpoint = self.store.complete(pending, progress, files)
        size_bytes = sum(entry.size_bytes for entry in checkpoint.manifest.files)
        self.journal.append(
            CheckpointSaved(time=time.time(), step=progress.step, size_bytes=size_bytes)
        )
        self.tell_saved(progress.step)
        if self.copies is not None:
            self.copies.start()
        self.prune()

    def _place(self, pending: PendingCheckpoint) -> str:
        """Return the folder of a checkpoint, relative to the run folder."""
        return str(pending.folder.relative_to(self.store.root.parent))

    def _write_shards(
        self, pending: PendingCheckpoint, *, in_background: bool = False
    ) -> list[FileEntry]:
        request = SaveShards(self._place(pending), pending.step, in_background)
        # Some ranks remember the answer of a failed attempt, whose files are removed. Only the
        # controller that made it knows that, so a successor's attempts have their own ids.
        stage = f"save_shards/{self.roles.caller.attempt}"
        id_ = RequestId(0, pending.step, stage, self._failures)
        files = []
        for group in self.roles.saved:
            saved: list[Saved] = self.roles.ask_all(group, SAVE_SHARDS, request, id_)
            files += _files(saved)
        return files

    def prune(self) -> None:
        """Remove checkpoints beyond those to keep; one that cannot be removed only costs space."""
        best = None if self.best is None else self.best.among(self.store.steps())
        try:
            held = None if self.copies is None else self.copies.step
            self.store.prune(self.keep_last, best, held)
        except StorageError as problem:
            _log.warning("old checkpoints stay: %s", problem)


def _files(answers: Iterable[Saved | Written]) -> list[FileEntry]:
    """Return the files that ranks report as written."""
    return [file for answer in answers for file in answer.files or ()]
