"""Row tape: the recorded batches of a run, which are replayed after a rewind.

A batch's rows and scores are on disk, and journaled, before training on them. After a rewind to a
checkpoint the later steps are replayed from disk, without calls of engines, tools, judges or reward
functions, so the run ends like an undisturbed one. Another run may replay the whole tape
(`spec.rollout.replay`).

A checkpoint contains the prefetched rows, without scores: the weights that generated them are gone.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa

from ppojob_api.problem import shown
from ppojob_api.run_layout import CHECKPOINTS_FOLDER
from ppojob_trainer import durable
from ppojob_trainer.checkpoint import manifest
from ppojob_trainer.checkpoint.journal import JOURNAL_NAME, Event, Journal, Rewound, RowsKept
from ppojob_trainer.checkpoint.manifest import check_content
from ppojob_trainer.checkpoint.store import folder_name
from ppojob_trainer.controller.batch import Batch
from ppojob_trainer.errors import ConfigError, DamagedCheckpoint
from ppojob_trainer.rows.row_files import ROWS_POINT, has_given, read_row_metadata
from ppojob_trainer.rpc.messages.saving import FileEntry

_log = logging.getLogger(__name__)

ROW_FOLDERS = {"greedy": "greedy", "train": "rollouts", "validation": "validation"}
"""Folders by purpose, in the order in which a step records its batches."""
_PURPOSES = tuple(ROW_FOLDERS)
AHEAD_FOLDER = "ahead"
"""Subfolder of a checkpoint with the prefetched rows, in one folder per purpose."""
_FOLDER = re.compile(r"step-(\d{6,})(?:-round-(\d+))?\.parquet")
Location = tuple[str, tuple[FileEntry, ...]]
"""A folder, relative to the run folder or absolute, and its files."""


class BatchKey(NamedTuple):
    """Identifies a batch of a run."""

    purpose: str
    step: int
    round: int = 0

    @property
    def order(self) -> tuple[int, int, int]:
        """Return the sort key of the recording order: a step's validation follows its rounds."""
        return self.step, _PURPOSES.index(self.purpose), self.round

    @property
    def folder(self) -> str:
        """Return the folder of its rows, relative to the run folder."""
        number = f"-round-{self.round + 1}" if self.round else ""
        return f"{ROW_FOLDERS[self.purpose]}/step-{self.step:06d}{number}.parquet"


def batches_on_disk(run_folder: Path) -> list[BatchKey]:
    """Return the batches with a folder of rows, complete or not."""
    return [
        BatchKey(purpose, int(match[1]), int(match[2] or 1) - 1)
        for purpose, name in ROW_FOLDERS.items()
        for path in sorted((run_folder / name).glob("*"))
        if (match := _FOLDER.fullmatch(path.name))
    ]


def key_of(batch: Batch | RowsKept) -> BatchKey:
    """Return the key of a batch, or of the event that it is on disk."""
    return BatchKey(batch.purpose, batch.step, batch.round)


@dataclass(frozen=True)
class Tape:
    """The recorded batches of a run, from its journal."""

    kept: dict[BatchKey, RowsKept]  # batches on disk
    # those recorded before the last rewind, contiguous from the checkpoint on; they will be
    # replayed
    before: dict[BatchKey, RowsKept]

    def with_rows(self, rows: RowsKept) -> Tape:
        """Return the tape with a batch and without later ones, which other weights generated."""
        here = key_of(rows)
        if rows.purpose != "validation":
            kept, before = (
                {key: known for key, known in of.items() if key.order < here.order}
                for of in (self.kept, self.before)
            )
        else:
            kept, before = self.kept, self.before
        return Tape({**kept, here: rows}, before)


def read_tape(events: Iterable[Event], settings: str | None) -> Tape:
    """Return the tape of a journal, without rows of other settings; None accepts any settings."""
    tape = Tape({}, {})
    for event in events:
        match event:
            case RowsKept():
                tape = tape.with_rows(event)
                if settings not in (None, event.settings):
                    del tape.kept[key_of(event)]
            case Rewound():
                before = _contiguous(tape.kept, event.to_step)
                # Batches after the checkpoint that are not replayed are removed from disk.
                kept = {k: rows for k, rows in tape.kept.items() if k.step <= event.to_step}
                tape = Tape(kept | before, before)
    return tape


def _contiguous(kept: dict[BatchKey, RowsKept], step: int) -> dict[BatchKey, RowsKept]:
    """Return the batches after a step, up to the first one that was not recorded."""
    last = step
    while BatchKey("train", last + 1) in kept:
        last += 1
    return {
        key: rows
        for key, rows in kept.items()
        if step < key.step <= last or (key.purpose == "validation" and key.step == step)
    }


def read_recording(recording: Path, *, takes_given: bool) -> Tape:
    """Return the tape of another run, which is replayed as a whole.

    ConfigError if it has no rows, unreadable rows, or given responses without `takes_given`.
    """
    where = f"spec.rollout.replay: got {shown(str(recording))}"
    journal = Journal(recording / CHECKPOINTS_FOLDER / JOURNAL_NAME)
    try:
        kept = read_tape(journal.read(), None).kept
    except (OSError, DamagedCheckpoint) as error:
        raise ConfigError(f"{where}: {error}; a run whose journal can be read") from error
    if not kept:
        why = "no rows were kept there"
        raise ConfigError(f"{where}: {why}; the folder of a run that has done a step")
    parts = [
        recording / key.folder / entry.path
        for key, rows in kept.items()
        for entry in rows.files
        if key.purpose == "train"
    ]
    try:
        if not takes_given and any(map(has_given, parts)):
            why = "some of its responses were given, and have a loss of their own"
            raise ConfigError(f"{where}: {why}; algorithm.guidance, or a run without it")
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(f"{where}: {error}; a run whose rows can be read") from error
    return Tape(kept, kept)


def prefetched_rows(run_folder: Path, step: int) -> dict[BatchKey, Location]:
    """Return the prefetched rows of a checkpoint; none if it is absent or damaged."""
    checkpoint = f"{CHECKPOINTS_FOLDER}/{folder_name(step)}"
    try:
        files = manifest.read(run_folder / checkpoint).files
    except DamagedCheckpoint:
        return {}
    found: dict[BatchKey, Location] = {}
    for entry in files:
        match entry.path.split("/"):
            case [folder, purpose, name] if folder == AHEAD_FOLDER:
                key = BatchKey(purpose, step + 1)
                _, others = found.get(key, ("", ()))
                own = msgspec.structs.replace(entry, path=name)
                found[key] = f"{checkpoint}/{folder}/{purpose}", (*others, own)
    return found


@dataclass
class RowTape:
    """The row tape of a job."""

    journal: Journal
    run_folder: Path
    settings: str  # digest of settings and data that determine rows
    recording: Path | None = None  # absolute folder of the replayed run; None if rows are generated
    takes_given: bool = False  # whether the job has a loss for given responses
    began: int = 0  # step that the job last rewound to; 0 for the start
    _tape: Tape = field(default_factory=lambda: Tape({}, {}))
    _prefetched: dict[BatchKey, Location] = field(default_factory=dict)

    def read(self) -> None:
        """Read the journal, at a start and after a rewind; raises as `read_recording`."""
        if self.recording is not None:
            self._tape = read_recording(self.recording, takes_given=self.takes_given)
            return
        events = self.journal.read()
        rewinds = [event.to_step for event in events if isinstance(event, Rewound)]
        self.began = rewinds[-1] if rewinds else 0
        self._prefetched = prefetched_rows(self.run_folder, self.began)
        tape = read_tape(events, self.settings)
        intact = self._intact(tape.before)
        damaged = tape.before.keys() - intact.keys()
        self._tape = Tape({k: r for k, r in tape.kept.items() if k not in damaged}, intact)

    def is_replayed(self, batch: Batch) -> bool:
        """Whether the rows of a batch are loaded from disk instead of generated.

        ConfigError if the recording lacks the batch, or has it for other prompts.
        """
        if self._source(batch) is not None:
            return True
        if self.recording is None:
            return False
        where = f"spec.rollout.replay: got {shown(str(self.recording))}"
        place = f"step {batch.step}"
        if batch.round:
            place += f", round {batch.round + 1}"
        if key_of(batch) not in self._tape.before:
            raise ConfigError(
                f"{where}: it has no {batch.purpose} rows of {place}; a run of as many steps, "
                "validated as often"
            )
        raise ConfigError(
            f"{where}: its {batch.purpose} rows of {place} answer other prompts than this job "
            "has there; a run of the same data, seed and batch size"
        )

    def has(self, batch: Batch) -> bool:
        """Whether rows and scores of a batch are on disk."""
        rows = self._tape.kept.get(key_of(batch))
        return rows is not None and rows.prompts == batch.prompts_digest

    def is_prefetched(self, batch: Batch) -> bool:
        """Whether the checkpoint that the job resumed from has the rows of a batch."""
        return key_of(batch) in self._prefetched

    def location(self, batch: Batch) -> tuple[str, list[str]]:
        """Return folder and file names of a replayed batch, constant until the job rewinds."""
        found = self._source(batch)
        assert found is not None, "the batch is replayed"
        return found[0], [entry.path for entry in found[1]]

    def _source(self, batch: Batch) -> Location | None:
        key = key_of(batch)
        rows = self._tape.before.get(key)
        if rows is not None and rows.prompts == batch.prompts_digest:
            return self._folder(key), rows.files
        return self._prefetched.get(key)

    def _folder(self, key: BatchKey) -> str:
        return key.folder if self.recording is None else str(self.recording / key.folder)

    def files(self, batch: Batch) -> list[Path]:
        key = key_of(batch)
        folder = self.run_folder / self._folder(key)
        return [folder / entry.path for entry in self._tape.kept[key].files]

    def load_metadata(self, batch: Batch) -> None:
        """Set lengths and scores of a batch on disk; prefetched rows have NaN scores.

        DamagedCheckpoint if a file was changed.
        """
        key = key_of(batch)
        if self.has(batch):
            path, entries = self._folder(key), self._tape.kept[key].files
        else:
            path, entries = self._prefetched[key]
        folder = self.run_folder / path
        for entry in entries:
            check_content(folder, entry)
        try:
            found = read_row_metadata(folder / entry.path for entry in entries)
            batch.metadata, batch.scores, batch.extras = found
        except (OSError, pa.ArrowException) as error:
            raise DamagedCheckpoint(folder.name, f"cannot be read: {error}") from error

    def record(self, batch: Batch, files: Iterable[FileEntry]) -> None:
        """Journal that a batch is on disk, before training on it."""
        rows = RowsKept(
            purpose=batch.purpose,
            step=batch.step,
            round=batch.round,
            settings=self.settings,
            prompts=batch.prompts_digest,
            files=tuple(files),
        )
        self.journal.append(rows)
        if self.recording is None:
            self._tape = self._tape.with_rows(rows)

    def copy(self, batch: Batch) -> tuple[FileEntry, ...]:
        """Copy the rows of a batch from the replayed run into this one."""
        key = key_of(batch)
        files = self._tape.kept[key].files
        source, target = self.run_folder / self._folder(key), self.run_folder / key.folder
        target.mkdir(parents=True, exist_ok=True)
        for entry in files:
            content = (source / entry.path).read_bytes()
            durable.write_file(target / entry.path, content, ROWS_POINT)
        return files

    @property
    def replayed(self) -> Collection[BatchKey]:
        """Return the batches that will be replayed from this run's own tape."""
        return () if self.recording else self._tape.before.keys()

    def _intact(self, before: dict[BatchKey, RowsKept]) -> dict[BatchKey, RowsKept]:
        """Return the batches before the first damaged one."""
        intact = dict[BatchKey, RowsKept]()
        for key in sorted(before, key=lambda key: key.order):
            try:
                for entry in before[key].files:
                    check_content(self.run_folder / key.folder, entry)
            except DamagedCheckpoint as damage:
                _log.warning("%s: generated again from step %d on", damage, key.step)
                break
            intact[key] = before[key]
        return intact
