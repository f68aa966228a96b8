"""Checkpoint scheduling: when one is due, how it is written, and which one is the best.

For a background checkpoint the ranks copy their state and write the copy during the next steps.
`poll` completes it once it is written; `wait` blocks until then.
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
    CheckpointSaved,
    CheckpointSkipped,
    Journal,
)
from ppojob_trainer.checkpoint.manifest import Progress
from ppojob_trainer.checkpoint.store import CheckpointStore
from ppojob_trainer.controller.journal_state import JournalState, without_tables
from ppojob_trainer.controller.roles import Roles
from ppojob_trainer.errors import ConfigError, DamagedCheckpoint, RoleLost, StorageError
from ppojob_trainer.rpc.client import Pending
from ppojob_trainer.rpc.messages.saving import AskWritten, FileEntry, Saved, SaveShards, Written
from ppojob_trainer.rpc.methods import SAVE_SHARDS, SHARDS_WRITTEN
from ppojob_trainer.rpc.wire import RequestId

_log = logging.getLogger(__name__)
_MAX_SUGGESTIONS: Final = 3
_POLL_SECONDS: Final = 1.0
_WAIT_SECONDS: Final = 0.05


@dataclass(frozen=True)
class BestCheckpoint:
    """Selects the best checkpoint by a metric; `history` returns the metrics of all steps."""

    spec: BestCheckpointSpec
    history: Callable[[], Iterator[Mapping[str, float | None]]]

    def among(self, steps: Collection[int]) -> int | None:
        """Return the step with the best value, the earliest of equal ones; None without values."""
        values = {}
        for record in self.history():
            step, value = record["step"], record.get(self.spec.metric)  # None: not finite
            if step is not None and value is not None and int(step) in steps:
                values[int(step)] = value if self.spec.mode == "max" else -value
        return max(values, key=values.__getitem__, default=None)

    def refuse_unknown(self, validation: Mapping[str, float]) -> None:
        """Raise ConfigError if neither this validation nor an earlier one has the metric."""
        name = self.spec.metric
        if name in validation or any(name in record for record in self.history()):
            return
        close = difflib.get_close_matches(name, validation, n=_MAX_SUGGESTIONS, cutoff=0.0)
        raise ConfigError(
            printable(
                f"spec.checkpoint.best.metric: got {shown(name)}: the validation has no such "
                f"metric; one that it has, such as {', '.join(close)}"
            )
        )


@dataclass
class _InFlight:
    """A background checkpoint."""

    pending: Path
    progress: Progress
    files: list[FileEntry]  # files that are already on disk
    rewinds: int
    query: Pending[Written] | None = None  # query to the ranks in flight
    poll_at: float = 0.0
    is_refused: bool = False  # whether a disk refused it


@dataclass
class Checkpoints:
    """Writes the checkpoints of a job."""

    roles: Roles
    store: CheckpointStore
    journal: Journal
    every: int | None  # steps between checkpoints; None without periodic ones
    keep_last: int
    best: BestCheckpoint | None  # selects a checkpoint to keep; None without one
    on_saved: Callable[[int], None]  # called with the step of each complete checkpoint
    # writes the prefetched rows (`PrefetchedSource.save`); None without prefetch
    write_ahead: Callable[[Progress, str, str], list[FileEntry]] | None = None
    copies: Copies | None = None  # copies checkpoints to a URL; None without copies
    _failures: int = 0
    _in_flight: _InFlight | None = None
    _skipped: tuple[int, int] | None = None  # rewinds and step

    @property
    def in_flight_step(self) -> int | None:
        return None if (one := self._current()) is None else one.progress.step

    @property
    def is_refused(self) -> bool:
        """Whether a disk refused the background checkpoint; `wait` raises the error."""
        return (one := self._current()) is not None and one.is_refused

    def is_due(self, progress: Progress) -> bool:
        """Whether a state must be saved before the next step."""
        if self.every is None or progress.step == 0 or progress.step % self.every:
            return False
        is_skipped = self._skipped == (self.roles.rewinds, progress.step)
        if is_skipped or progress.step == self.in_flight_step:
            return False
        return not self.store.is_whole(progress.step)

    def newest(self, step: int | None = None) -> int | None:
        """Return the step of the newest checkpoint (at most `step`, if given), or None."""
        steps = (one for one in self.store.steps() if step is None or one <= step)
        return max(steps, default=None)

    def save(self, progress: Progress, *, in_background: bool = False) -> None:
        """Save the state of the ranks and of the loop; no background write may be in flight.

        With `in_background`, ranks have copied their state when this returns. Earlier checkpoints
        are kept on errors.

        Raises:
            RoleLost: a rank was lost.
            StorageError: a disk refused; the incomplete files are removed.
        """
        # Ranks may still write a checkpoint that a killed controller requested.
        self.roles.barrier(self.roles.saved, progress.step, f"save_shards/{self._failures}")
        # The folder name contains the rewinds: ranks that write from before a rewind find it gone.
        rewinds = self.roles.rewinds
        pending = self.store.begin(progress.step, rewinds=rewinds)
        try:
            files = self._write_shards(pending, progress.step, in_background=in_background)
            if self.write_ahead is not None:
                act = f"save_rows/{self._failures}"
                files += self.write_ahead(progress, self._folder(pending), act)
            if not in_background:
                self._complete(pending, progress, files)
                return
            begun = without_tables(progress)
            self.journal.append(CheckpointBegun(progress=begun, files=tuple(files)))
            self._in_flight = _InFlight(pending, progress, files, rewinds)
        except StorageError:
            self._failures += 1
            self.roles.barrier(self.roles.saved, progress.step, f"save_shards/{self._failures}")
            self.store.clear()  # free the space: the next steps need some
            raise

    def poll(self) -> None:
        """Complete the background checkpoint if it is written; does not block."""
        one = self._current()
        if one is None or one.is_refused or time.monotonic() < one.poll_at:
            return
        if one.query is None:
            one.query = self._query(one)
        elif one.query.is_done:
            query, one.query = one.query, None
            one.poll_at = time.monotonic() + _POLL_SECONDS
            one.is_refused = query.refusal is not None or any(a.refusal for a in query.answers)
            if not one.is_refused and all(a.files is not None for a in query.answers):
                try:
                    self._complete(one.pending, one.progress, one.files + _files(query.answers))
                    self._in_flight = None
                except (StorageError, DamagedCheckpoint):
                    one.is_refused = True

    def wait(self) -> None:
        """Wait until the background checkpoint is written, and complete it; raises as `save`."""
        one = self._current()
        if one is None:
            return
        self._drop()
        try:
            files = self._written(one)
            self._complete(one.pending, one.progress, one.files + files)
        except RoleLost:
            self._in_flight = one
            raise
        except (StorageError, DamagedCheckpoint) as problem:
            self._failures += 1
            self.store.clear()
            if isinstance(problem, DamagedCheckpoint):  # removed with a failed attempt
                raise StorageError(one.pending, str(problem)) from problem
            raise

    def skip(self, step: int) -> None:
        """Record that a step has no checkpoint: the ranks no longer have its state."""
        self.journal.append(CheckpointSkipped(step=step))
        self._skipped = self.roles.rewinds, step

    def adopt(self, position: JournalState) -> None:
        """Take over the background checkpoint of an earlier controller, with the same ranks."""
        rewinds = self.roles.rewinds
        self._skipped = None if position.skipped is None else (rewinds, position.skipped)
        if (begun := position.begun) is not None:
            pending = self.store.begin(begun.progress.step, rewinds=rewinds)
            self._in_flight = _InFlight(pending, begun.progress, list(begun.files), rewinds)

    def _current(self) -> _InFlight | None:
        """Return the background checkpoint; drop one from before a rewind."""
        if self._in_flight is not None and self._in_flight.rewinds != self.roles.rewinds:
            self._drop()
        return self._in_flight

    def _drop(self) -> None:
        if self._in_flight is not None and self._in_flight.query is not None:
            self.roles.caller.cancel(self._in_flight.query)
            self._in_flight.query = None
        self._in_flight = None

    def _query(self, one: _InFlight) -> Pending[Written]:
        query = AskWritten(self._folder(one.pending))
        return self.roles.submit_query(self.roles.saved, SHARDS_WRITTEN, query)

    def _written(self, one: _InFlight) -> list[FileEntry]:
        """Wait until each rank has written its files or was refused; return the files."""
        limit = self.roles.caller.default_deadline_seconds
        deadline = time.monotonic() + limit
        while True:
            query = self._query(one)
            answers = list(zip(query.calls, self.roles.gather(query), strict=True))
            waiting = [call.peer for call, a in answers if a.files is None and not a.refusal]
            if not waiting:
                break
            if time.monotonic() > deadline:
                late = f"{waiting[0].name}: no part of a checkpoint within {limit:g} s"
                raise RoleLost(waiting[0].role, late)
            time.sleep(_WAIT_SECONDS)
        for call, answer in answers:
            if answer.refusal:
                raise StorageError(Path(call.peer.name), answer.refusal)
        return _files(answer for _, answer in answers)

    def _complete(self, pending: Path, progress: Progress, files: list[FileEntry]) -> None:
        checkpoint = self.store.complete(pending, progress, files)
        self.journal.append(CheckpointSaved.of(progress.step, checkpoint.manifest.files))
        self.on_saved(progress.step)
        if self.copies is not None:
            self.copies.start()
        self.prune()

    def _folder(self, pending: Path) -> str:
        """Return the folder of a checkpoint, relative to the run folder."""
        return str(pending.relative_to(self.store.root.parent))

    def _write_shards(
        self, pending: Path, step: int, *, in_background: bool = False
    ) -> list[FileEntry]:
        request = SaveShards(self._folder(pending), step, in_background)
        # Ranks answer a repeated id from memory, but the files of a failed attempt are removed. A
        # restarted controller does not know of failures, so its attempt is in the id.
        stage = f"save_shards/{self.roles.caller.attempt}"
        id_ = RequestId(0, step, stage, self._failures)
        files = []
        for group in self.roles.saved:
            saved: list[Saved] = self.roles.broadcast(group, SAVE_SHARDS, request, id_)
            files += _files(saved)
        return files

    def prune(self) -> None:
        best = None if self.best is None else self.best.among(self.store.steps())
        try:
            held = None if self.copies is None else self.copies.step
            self.store.prune(self.keep_last, best, held)
        except StorageError as problem:
            _log.warning("old checkpoints stay: %s", problem)


def _files(answers: Iterable[Saved | Written]) -> list[FileEntry]:
    return [file for answer in answers for file in answer.files or ()]
