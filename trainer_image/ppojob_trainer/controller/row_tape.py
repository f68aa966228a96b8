"""The row tape: batches that are generated and scored once, whatever is lost afterwards.

The rows of a batch and their scores are on the disk, and the journal says so, before anything is
trained on them. A job that goes back to a checkpoint takes the steps behind it from there: no
engine, tool, judge or reward function is asked again, so it ends as the undisturbed run however
random those are. Another run may be trained on the whole tape of a run (`spec.rollout.replay`).

Rows that were drawn ahead of a checkpoint are in it, without scores, since nobody has the weights
any more that drew them.
"""

from __future__ import annotations

import logging
import re
import time
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
from ppojob_trainer.checkpoint.files import check_content
from ppojob_trainer.checkpoint.journal import JOURNAL_NAME, Event, Journal, Rewound, RowsKept
from ppojob_trainer.checkpoint.store import folder_name
from ppojob_trainer.controller.batch import Batch
from ppojob_trainer.errors import ConfigError, DamagedCheckpoint
from ppojob_trainer.rows.row_files import ROWS_POINT, has_given, read_verdicts
from ppojob_trainer.rpc.messages.saving import FileEntry
from ppojob_trainer.rpc.messages.scoring import RowScore

_log = logging.getLogger(__name__)

ROW_FOLDERS = {"greedy": "greedy", "train": "rollouts", "validation": "validation"}
"""Folders of the purposes, in the order in which a step keeps their batches."""
_PURPOSES = tuple(ROW_FOLDERS)
AHEAD_FOLDER = "ahead"
"""Of a checkpoint: a folder for each purpose, with the rows of the step behind it."""
_FOLDER = re.compile(r"step-(\d{6,})(?:-round-(\d+))?\.parquet")
Place = tuple[str, tuple[FileEntry, ...]]
"""A folder, relative to the run folder or absolute, and its files."""


class BatchKey(NamedTuple):
    """Which batch of a run."""

    purpose: str
    step: int
    round: int = 0

    @property
    def order(self) -> tuple[int, int, int]:
        """Sorts batches by when they are kept: the validation of a step is behind its rounds."""
        return self.step, _PURPOSES.index(self.purpose), self.round

    @property
    def folder(self) -> str:
        """Where its rows lie, relative to the run folder."""
        number = f"-round-{self.round + 1}" if self.round else ""
        return f"{ROW_FOLDERS[self.purpose]}/step-{self.step:06d}{number}.parquet"


def batches_on_disk(run_folder: Path) -> list[BatchKey]:
    """The batches that have a folder of rows, whole or in part."""
    return [
        BatchKey(purpose, int(match[1]), int(match[2] or 1) - 1)
        for purpose, name in ROW_FOLDERS.items()
        for path in sorted((run_folder / name).glob("*"))
        if (match := _FOLDER.fullmatch(path.name))
    ]


def batch_key(batch: Batch, step: int) -> BatchKey:
    """The key of a batch of a step."""
    return BatchKey(batch.purpose, step, batch.round)


def _key_of(rows: RowsKept) -> BatchKey:
    return BatchKey(rows.purpose, rows.step, rows.round)


@dataclass(frozen=True)
class Tape:
    """What a journal says of the rows of its run.

    Attributes:
        kept: batches that are on the disk.
        before: those of them that were there when the job last went back to a checkpoint, from the
            checkpoint on without a gap: the ranks of today have never had them.
    """

    kept: dict[BatchKey, RowsKept]
    before: dict[BatchKey, RowsKept]

    def with_rows(self, rows: RowsKept) -> Tape:
        """The tape with a generated batch: what lay behind it was drawn by other weights."""
        here = _key_of(rows)
        if rows.purpose != "validation":
            kept, before = (
                {key: known for key, known in of.items() if key.order < here.order}
                for of in (self.kept, self.before)
            )
        else:
            kept, before = self.kept, self.before
        return Tape({**kept, here: rows}, before)


def read_tape(events: Iterable[Event], settings: str | None) -> Tape:
    """Fold a journal.

    Rows that were kept under other settings do not count; None takes those of any.
    """
    tape = Tape({}, {})
    for event in events:
        match event:
            case RowsKept():
                tape = tape.with_rows(event)
                if settings not in (None, event.settings):
                    del tape.kept[_key_of(event)]
            case Rewound():
                before = _without_gap(tape.kept, event.to_step)
                # What lies behind the checkpoint and is not taken from there goes from the disk.
                kept = {k: rows for k, rows in tape.kept.items() if k.step <= event.to_step}
                tape = Tape(kept | before, before)
    return tape


def _without_gap(kept: dict[BatchKey, RowsKept], step: int) -> dict[BatchKey, RowsKept]:
    """The batches behind a step, until one was not kept."""
    last = step
    while BatchKey("train", last + 1) in kept:
        last += 1
    return {
        key: rows
        for key, rows in kept.items()
        if step < key.step <= last or (key.purpose == "validation" and key.step == step)
    }


def read_recording(recording: Path, *, takes_given: bool) -> Tape:
    """The tape of another run, all of which is trained on again.

    Raises:
        ConfigError: it has no rows, none that can be read, or some that were given, which
            `takes_given` says are learnt.
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


def rows_ahead(run_folder: Path, step: int) -> dict[BatchKey, Place]:
    """The rows that a checkpoint holds; none where it is not there, or damaged."""
    checkpoint = f"{CHECKPOINTS_FOLDER}/{folder_name(step)}"
    try:
        files = manifest.read(run_folder / checkpoint).files
    except DamagedCheckpoint:
        return {}
    found: dict[BatchKey, Place] = {}
    for entry in files:
        match entry.path.split("/"):
            case [folder, purpose, name] if folder == AHEAD_FOLDER:
                key, place = BatchKey(purpose, step + 1), f"{checkpoint}/{folder}/{purpose}"
                before = found.get(key, (place, ()))[1]
                found[key] = place, (*before, msgspec.structs.replace(entry, path=name))
    return found


@dataclass
class RowTape:
    """The tape of a job.

    Attributes:
        settings: digest of what decides rows.
        recording: absolute folder of the run whose rows are trained on again; None where they are
            generated.
        takes_given: whether the job has a loss for responses that were given.
        began: step of the checkpoint that the job went back to last, 0 for its beginning.
    """

    journal: Journal
    run_folder: Path
    settings: str
    recording: Path | None = None
    takes_given: bool = False
    began: int = 0
    _tape: Tape = field(default_factory=lambda: Tape({}, {}))
    _ahead: dict[BatchKey, Place] = field(default_factory=dict)

    def read(self) -> None:
        """Take up what the journal says now: at a controller's start, and behind a rewind.

        Raises:
            ConfigError: see `read_recording`.
        """
        if self.recording is None:
            events = self.journal.read()
            rewinds = [event.to_step for event in events if isinstance(event, Rewound)]
            self.began = rewinds[-1] if rewinds else 0
            self._ahead = rows_ahead(self.run_folder, self.began)
            tape = read_tape(events, self.settings)
            whole = self._whole(tape.before)
            gone = tape.before.keys() - whole.keys()
            self._tape = Tape({k: r for k, r in tape.kept.items() if k not in gone}, whole)
            return
        self._tape = read_recording(self.recording, takes_given=self.takes_given)

    def is_replayed(self, batch: Batch, step: int) -> bool:
        """Whether the ranks take the rows of a batch from the disk instead of generating them.

        Raises:
            ConfigError: the recording does not have the batch, or answers to other prompts.
        """
        if self._source(batch, step) is not None:
            return True
        if self.recording is None:
            return False
        where = f"spec.rollout.replay: got {shown(str(self.recording))}"
        place = f"step {step}, round {batch.round + 1}" if batch.round else f"step {step}"
        if batch_key(batch, step) not in self._tape.before:
            raise ConfigError(
                f"{where}: it has no {batch.purpose} rows of {place}; a run of as many steps, "
                "validated as often"
            )
        raise ConfigError(
            f"{where}: its {batch.purpose} rows of {place} answer other prompts than this job "
            "has there; a run of the same data, seed and batch size"
        )

    def has(self, batch: Batch, step: int) -> bool:
        """Whether rows and scores of a batch are on the disk."""
        rows = self._tape.kept.get(batch_key(batch, step))
        return rows is not None and rows.prompts == batch.prompts_digest

    def is_ahead(self, batch: Batch, step: int) -> bool:
        """Whether the checkpoint that the job began at has the rows of a batch."""
        return batch_key(batch, step) in self._ahead

    def place(self, batch: Batch, step: int) -> tuple[str, list[str]]:
        """Where ranks take a batch from that `is_replayed`: a folder, and the files in it.

        It stays the same until the job goes back to a checkpoint.
        """
        found = self._source(batch, step)
        assert found is not None, "it is on the disk"
        return found[0], [entry.path for entry in found[1]]

    def _source(self, batch: Batch, step: int) -> Place | None:
        key = batch_key(batch, step)
        rows = self._tape.before.get(key)
        if rows is not None and rows.prompts == batch.prompts_digest:
            return self._folder(key), rows.files
        return self._ahead.get(key)

    def _folder(self, key: BatchKey) -> str:
        return key.folder if self.recording is None else str(self.recording / key.folder)

    def files(self, batch: Batch, step: int) -> list[Path]:
        """The files of a batch that is on the disk."""
        key = batch_key(batch, step)
        folder = self.run_folder / self._folder(key)
        return [folder / entry.path for entry in self._tape.kept[key].files]

    def fill(self, batch: Batch, step: int) -> None:
        """Fill in lengths and scores of a batch that is on the disk.

        Rows that were drawn ahead have scores that are no numbers, until they are scored.

        Raises:
            DamagedCheckpoint: a file is not what was written.
        """
        key = batch_key(batch, step)
        kept = (self._folder(key), self._tape.kept[key].files) if self.has(batch, step) else None
        place, entries = kept or self._ahead[key]
        folder = self.run_folder / place
        for entry in entries:
            check_content(folder, entry)
        try:
            found = read_verdicts(folder / entry.path for entry in entries)
        except (OSError, pa.ArrowException) as error:
            raise DamagedCheckpoint(folder.name, f"cannot be read: {error}") from error
        batch.lengths, batch.truncated = found.lengths, found.truncated
        batch.figures = found.figures if any(found.figures) else []
        batch.versions = found.versions
        batch.later_picture_bytes = found.later_picture_bytes
        batch.take_scores(
            [
                RowScore(row, score, values)
                for row, (score, values) in enumerate(zip(found.scores, found.values, strict=True))
            ]
        )

    def keep(self, batch: Batch, step: int, files: Iterable[FileEntry]) -> None:
        """Say that a batch is on the disk; nothing is trained on it before."""
        rows = RowsKept(
            time=time.time(),
            purpose=batch.purpose,
            step=step,
            round=batch.round,
            settings=self.settings,
            prompts=batch.prompts_digest,
            files=tuple(files),
        )
        self.journal.append(rows)
        if self.recording is None:
            self._tape = self._tape.with_rows(rows)

    def copy(self, batch: Batch, step: int) -> tuple[FileEntry, ...]:
        """Take the rows of a batch over from the recording into this run."""
        key = batch_key(batch, step)
        files = self._tape.kept[key].files
        source, target = self.run_folder / self._folder(key), self.run_folder / key.folder
        target.mkdir(parents=True, exist_ok=True)
        for entry in files:
            content = (source / entry.path).read_bytes()
            durable.write_file(target / entry.path, content, ROWS_POINT)
        return files

    @property
    def replayed(self) -> Collection[BatchKey]:
        """The batches that will be taken from the disk of this run."""
        return () if self.recording else self._tape.before.keys()

    def _whole(self, before: dict[BatchKey, RowsKept]) -> dict[BatchKey, RowsKept]:
        """Those before the first whose files are not what was written."""
        damaged = None
        for key in sorted(before, key=lambda key: key.order):
            folder = self.run_folder / key.folder
            try:
                for entry in before[key].files:
                    check_content(folder, entry)
            except DamagedCheckpoint as damage:
                _log.warning("%s: generated again from step %d on", damage, key.step)
                damaged = key.order
                break
        return {k: rows for k, rows in before.items() if damaged is None or k.order < damaged}
