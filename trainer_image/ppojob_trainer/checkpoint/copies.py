"""Copies of checkpoints and of the export in remote storage, each complete or absent (ADR 58).

::

    <copyTo>/<name of the job>/
      checkpoints/step-000010/   files, and other resume state in run/; the manifest is last
      export/                    config.json is last

fsspec writes URLs; paths work as well. Does not import torch: the controller imports this module.
"""

import json
import logging
import posixpath
import threading
import time
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from ppojob_api.problem import Problem, ReasonCode, shown
from ppojob_api.run_config import RunConfig
from ppojob_api.run_layout import (
    CHECKPOINTS_FOLDER,
    FETCHED_FILE,
    JOURNAL_FILE,
    METRICS_FILE,
)
from ppojob_trainer import durable, failpoints
from ppojob_trainer.checkpoint import manifest
from ppojob_trainer.checkpoint.files import check_content
from ppojob_trainer.checkpoint.identity import changed_settings
from ppojob_trainer.checkpoint.journal import CheckpointSaved, Journal
from ppojob_trainer.checkpoint.manifest import MANIFEST_NAME, Manifest
from ppojob_trainer.checkpoint.places import RUN_FOLDER, Place
from ppojob_trainer.checkpoint.store import CheckpointStore, folder_name, has_checkpoint
from ppojob_trainer.errors import (
    CannotResume,
    ConfigError,
    DamagedCheckpoint,
    Interrupted,
    JobFailed,
)
from ppojob_trainer.processor import has_native_bfloat16
from ppojob_trainer.remote_files import Log

_log = logging.getLogger(__name__)
COPY_FILE: Final = failpoints.declare("copied.file")
COPY_MANIFEST: Final = failpoints.declare("copied.manifest")
COPY_PRUNED: Final = failpoints.declare("copied.pruned")
RESTORE_FILE: Final = durable.point("restored.file", *durable.FILE_ACTS)
RESTORE_POINT: Final = durable.point("restored", "fsync", *durable.RENAME_ACTS)

FIELD: Final = "spec.checkpoint.copyTo"
_POLL_SECONDS: Final = 0.2


def _place(config: RunConfig, tell: Log = _log.warning) -> Place:
    assert config.spec.checkpoint.copy_to is not None
    return Place(posixpath.join(config.spec.checkpoint.copy_to, config.name), FIELD, tell)


class Copies:
    """Background copies of checkpoints, one at a time, the newest first.

    If the store does not answer, copies are missing, and the job fails only at its end.
    """

    def __init__(
        self,
        config: RunConfig,
        store: CheckpointStore,
        best: Callable[[Collection[int]], int | None],
    ) -> None:
        self.trouble: str | None = None
        self.under_way: int | None = None
        self._config, self._store, self._best = config, store, best
        self._place: Place | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start copying what is missing, unless a copy is running."""
        if self._thread is None or not self._thread.is_alive():
            self._begin(self._copy_all)

    def finish(self, export: Path | None, stop: Callable[[], bool]) -> None:
        """Copy what is missing, and an export, before the job ends.

        Raises:
            Interrupted: the job was asked to stop meanwhile.
            JobFailed: the store refused.
        """
        self._wait(stop)
        self._begin(partial(self._copy_all, export))
        self._wait(stop)
        if self.trouble is not None:
            raise JobFailed(
                f"{self.trouble}; the run is whole in its folder, and the next start copies it"
            )

    def _begin(self, act: Callable[[], None]) -> None:
        # A daemon thread: a controller that is asked to stop must not wait for a hanging store.
        self._thread = threading.Thread(
            target=self._guarded, args=(act,), name="copies", daemon=True
        )
        self._thread.start()

    def _wait(self, stop: Callable[[], bool]) -> None:
        while self._thread is not None and self._thread.is_alive():
            if stop():
                raise Interrupted("asked to end while copies were made; the next start makes them")
            self._thread.join(_POLL_SECONDS)

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
            self.trouble = None
        except Exception as problem:  # a checkpoint may also be pruned meanwhile
            self.trouble = f"{FIELD}: not copied: {problem}"
            _log.warning("%s", self.trouble)
        finally:
            self.under_way = None

    def _copy_all(self, export: Path | None = None) -> None:
        if self._place is None:
            _refuse_run_folder(self._config, self._store.root.parent)
            place = _place(self._config)
            for step in place.complete():
                try:
                    _refuse_others(place, step, place.manifest(step), self._config)
                    break
                except DamagedCheckpoint as problem:
                    _log.warning("%s: %s: this copy is removed", place.url, problem)
                    place.remove(step)
            self._place = place
        while (missing := self._next(self._place)) is not None:
            self.under_way = missing
            self._copy(self._place, missing)
        self._prune(self._place)
        if export is not None:
            self._place.put_export(export)

    def _next(self, place: Place) -> int | None:
        """Return the newest checkpoint without a copy, or the best."""
        steps, complete = self._store.steps(), set(place.complete())
        best = self._best({*steps, *complete})
        wanted = [*steps[-1:], *([best] if best in steps else [])]
        return next((one for one in wanted if one is not None and one not in complete), None)

    def _copy(self, place: Place, step: int) -> None:
        found = self._store.read(step)
        for entry in found.manifest.files:
            failpoints.hit(COPY_FILE)
            check_content(found.folder, entry)
            place.put(step, entry.path, found.folder / entry.path)
        folder = self._store.root.parent
        lines = durable.read_lines(folder / METRICS_FILE)[: found.manifest.progress.metrics_lines]
        began = durable.read_lines(self._store.root / JOURNAL_FILE)[:1]
        place.put(step, f"{RUN_FOLDER}/{METRICS_FILE}", _text(lines))
        place.put(step, f"{RUN_FOLDER}/{JOURNAL_FILE}", _text(began))
        fetched = folder / FETCHED_FILE
        place.put(
            step,
            f"{RUN_FOLDER}/{FETCHED_FILE}",
            fetched.read_bytes() if fetched.exists() else b"{}",
        )
        failpoints.hit(COPY_MANIFEST)
        place.put(step, MANIFEST_NAME, (found.folder / MANIFEST_NAME).read_bytes())

    def _prune(self, place: Place) -> None:
        complete = list(place.complete())
        keep = {*complete[: self._config.spec.checkpoint.keep_last], self._best(complete)}
        for step in place.steps():
            if step not in keep:
                failpoints.hit(COPY_PRUNED)
                place.remove(step)


def restore(config: RunConfig, run_folder: Path, tell: Log = _log.info) -> None:
    """Restore the newest complete copy of a run that has no checkpoint in its folder.

    Copies are matched by settings: the same settings lead to the same bits.

    Raises:
        CannotResume: the copies are of a run with other settings, or none can be resumed from.
        ConfigError: the store cannot be read as the job names it, or is the run folder.
        JobFailed: the store did not answer after all retries.
        StorageError: the disk refused.
    """
    root = run_folder / CHECKPOINTS_FOLDER
    _refuse_run_folder(config, run_folder)
    if config.spec.checkpoint.copy_to is None or has_checkpoint(run_folder):
        return
    place = _place(config, tell)
    for step in place.complete():
        if config.spec.checkpoint.resume == "never":
            raise CannotResume(
                f'spec.checkpoint.resume: got "never": {place.url} has a copy of step {step}; '
                "auto to go on from there, or another copyTo"
            )
        try:
            found = place.manifest(step)
            _refuse_others(place, step, found, config)
            folder = _fetched(place, step, found, root, config.uid)
            _bring_run_back(place, step, found, run_folder)
        except DamagedCheckpoint as problem:
            tell(f"{place.url}: {problem}: this copy is not used")
            continue
        durable.rename(folder, root / folder_name(step), RESTORE_POINT)
        tell(f"{place.url}: the run goes on from the copy of step {step}")
        return


def _refuse_run_folder(config: RunConfig, run_folder: Path) -> None:
    """Refuse the run folder as the store: a copy would be pruned with its original."""
    target = config.spec.checkpoint.copy_to
    if target is None or "://" in target:
        return
    copies = Path(target) / config.name
    is_same = copies.exists() and run_folder.exists() and copies.samefile(run_folder)
    if is_same or copies.resolve() == run_folder.resolve():
        why, allowed = f"{copies} is the run folder", "a folder elsewhere, or a URL"
        raise ConfigError(str(Problem(FIELD, shown(target), why, allowed, ReasonCode.CONFLICT)))


def _refuse_others(place: Place, step: int, found: Manifest, config: RunConfig) -> None:
    """Refuse copies of a run with other settings by CannotResume, a line for each."""
    theirs = place.settings(step, found)
    here = config.on_processor(native_bfloat16=has_native_bfloat16()).trajectory_json()
    differences = changed_settings(theirs["spec"], json.loads(here)["spec"])
    if differences:
        raise CannotResume(
            f"{where}: got {new}: the copies at {shown(place.url)} were made with {old}; another "
            "spec.checkpoint.copyTo or name of the job, or the old value"
            for where, old, new in differences
        )


def _fetched(place: Place, step: int, found: Manifest, root: Path, uid: str) -> Path:
    """Download a copy to a temporary folder and verify it; its manifest names this job."""
    folder = place.fetched(step, found.files, root)
    ours = manifest.encode(msgspec.structs.replace(found, job_uid=uid))
    durable.write_file(folder / MANIFEST_NAME, ours, RESTORE_FILE)
    for path in (*folder.rglob("*"), folder):
        durable.fsync_file(path, RESTORE_POINT)
    return folder


def _bring_run_back(place: Place, step: int, found: Manifest, run_folder: Path) -> None:
    """Restore the run's other resume state if it is missing."""
    journal = run_folder / CHECKPOINTS_FOLDER / JOURNAL_FILE
    for target in (run_folder / METRICS_FILE, run_folder / FETCHED_FILE, journal):
        if not target.exists():
            data = place.read(step, RUN_FOLDER, target.name)
            durable.write_file(target, data, RESTORE_FILE)
    size_bytes = sum(entry.size_bytes for entry in found.files)
    Journal(journal).append(CheckpointSaved(time=time.time(), step=step, size_bytes=size_bytes))


def _text(lines: list[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)
