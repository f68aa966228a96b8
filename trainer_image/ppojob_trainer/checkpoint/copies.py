"""Copies of checkpoints and of the export in remote storage, each complete or absent (ADR 58).

::

    <copyTo>/<name of the job>/
      checkpoints/step-000010/   files, and other resume state in run/; the manifest is last
      export/                    config.json is last

Does not import torch: the controller imports this module.
"""

import json
import logging
import posixpath
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

import msgspec

from ppojob_api.problem import Problem, ReasonCode, shown
from ppojob_api.run_config import RunConfig
from ppojob_api.run_layout import CHECKPOINTS_FOLDER, FETCHED_FILE, JOURNAL_FILE, METRICS_FILE
from ppojob_trainer import durable, failpoints
from ppojob_trainer.checkpoint.identity import changed_settings
from ppojob_trainer.checkpoint.journal import CheckpointSaved, Journal
from ppojob_trainer.checkpoint.manifest import MANIFEST_NAME, Manifest, check_content
from ppojob_trainer.checkpoint.remote_store import RUN_FOLDER, RemoteStore, complete_download
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


def _remote(config: RunConfig, tell: Log = _log.warning) -> RemoteStore:
    assert config.spec.checkpoint.copy_to is not None
    return RemoteStore(posixpath.join(config.spec.checkpoint.copy_to, config.name), FIELD, tell)


class Copies:
    """Background copies of checkpoints, one at a time, the newest first.

    If the store fails, copies are missing, and the job fails only at its end.

    Attributes:
        problem: why the last copy failed; None if it did not.
        step: the checkpoint that is being copied; None without one.
    """

    def __init__(
        self,
        config: RunConfig,
        store: CheckpointStore,
        best: Callable[[Collection[int]], int | None],
    ) -> None:
        self.problem: str | None = None
        self.step: int | None = None
        self._config, self._store, self._best = config, store, best
        self._remote: RemoteStore | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start copying what is missing, unless a copy is running."""
        if self._thread is None or not self._thread.is_alive():
            self._begin()

    def finish(self, export: Path | None, stop: Callable[[], bool]) -> None:
        """Copy missing checkpoints, and an export, before the job ends.

        Raises:
            Interrupted: the job was stopped meanwhile.
            JobFailed: the store failed.
        """
        self._wait(stop)
        self._begin(export)
        self._wait(stop)
        if self.problem is not None:
            raise JobFailed(
                f"{self.problem}; the run folder is complete, and the next start copies it"
            )

    def _begin(self, export: Path | None = None) -> None:
        # A daemon thread: a controller that stops must not wait for a hanging store.
        self._thread = threading.Thread(target=self._run, args=(export,), daemon=True)
        self._thread.start()

    def _wait(self, stop: Callable[[], bool]) -> None:
        while self._thread is not None and self._thread.is_alive():
            if stop():
                raise Interrupted("stopped during copies of checkpoints; the next start makes them")
            self._thread.join(_POLL_SECONDS)

    def _run(self, export: Path | None) -> None:
        try:
            self._copy_all(export)
            self.problem = None
        except Exception as problem:  # a checkpoint may also be pruned meanwhile
            self.problem = f"{FIELD}: not copied: {problem}"
            _log.warning("%s", self.problem)
        finally:
            self.step = None

    def _copy_all(self, export: Path | None) -> None:
        if self._remote is None:
            _refuse_run_folder(self._config, self._store.root.parent)
            remote = _remote(self._config)
            for step in remote.complete():
                try:
                    _refuse_other_settings(remote, step, remote.manifest(step), self._config)
                    break
                except DamagedCheckpoint as problem:
                    _log.warning("%s: %s: this copy is removed", remote.url, problem)
                    remote.remove(step)
            self._remote = remote
        while (missing := self._next(self._remote)) is not None:
            self.step = missing
            self._copy(self._remote, missing)
        self._prune(self._remote)
        if export is not None:
            self._remote.upload_export(export)

    def _next(self, remote: RemoteStore) -> int | None:
        """Return the newest checkpoint without a copy, or the best."""
        steps, complete = self._store.steps(), set(remote.complete())
        best = self._best({*steps, *complete})
        wanted = [*steps[-1:], *(step for step in steps if step == best)]
        return next((step for step in wanted if step not in complete), None)

    def _copy(self, remote: RemoteStore, step: int) -> None:
        found = self._store.read(step)
        for entry in found.manifest.files:
            failpoints.hit(COPY_FILE)
            check_content(found.folder, entry)
            remote.upload(step, entry.path, found.folder / entry.path)
        folder = self._store.root.parent
        lines = durable.read_lines(folder / METRICS_FILE)[: found.manifest.progress.metrics_lines]
        first_event = durable.read_lines(self._store.root / JOURNAL_FILE)[:1]
        fetched = folder / FETCHED_FILE
        for name, content in (
            (METRICS_FILE, _text(lines)),
            (JOURNAL_FILE, _text(first_event)),
            (FETCHED_FILE, fetched.read_bytes() if fetched.exists() else b"{}"),
        ):
            remote.upload(step, f"{RUN_FOLDER}/{name}", content)
        failpoints.hit(COPY_MANIFEST)
        remote.upload(step, MANIFEST_NAME, (found.folder / MANIFEST_NAME).read_bytes())

    def _prune(self, remote: RemoteStore) -> None:
        complete = list(remote.complete())
        keep = {*complete[: self._config.spec.checkpoint.keep_last], self._best(complete)}
        for step in remote.steps():
            if step not in keep:
                failpoints.hit(COPY_PRUNED)
                remote.remove(step)


def restore(config: RunConfig, run_folder: Path, tell: Log = _log.info) -> None:
    """Restore the newest complete copy of a run that has no checkpoint in its folder.

    Copies are matched by settings: the same settings lead to the same bits.

    Raises:
        CannotResume: the copies are of a run with other settings.
        ConfigError: the store cannot be read, or is the run folder.
        JobFailed: the store failed after all retries.
        StorageError: the disk refused.
    """
    root = run_folder / CHECKPOINTS_FOLDER
    _refuse_run_folder(config, run_folder)
    if config.spec.checkpoint.copy_to is None or has_checkpoint(run_folder):
        return
    remote = _remote(config, tell)
    for step in remote.complete():
        if config.spec.checkpoint.resume == "never":
            raise CannotResume(
                f'spec.checkpoint.resume: got "never": {remote.url} has a copy of step {step}; '
                "auto to resume from it, or another copyTo"
            )
        try:
            found = remote.manifest(step)
            _refuse_other_settings(remote, step, found, config)
            folder = remote.download(step, found.files, root)
            own = msgspec.structs.replace(found, job_uid=config.uid)
            complete_download(folder, own, RESTORE_FILE, RESTORE_POINT)
            _restore_run_files(remote, step, found, run_folder)
        except DamagedCheckpoint as problem:
            tell(f"{remote.url}: {problem}: this copy is not used")
            continue
        durable.rename(folder, root / folder_name(step), RESTORE_POINT)
        tell(f"{remote.url}: the run resumes from the copy of step {step}")
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


def _refuse_other_settings(
    remote: RemoteStore, step: int, found: Manifest, config: RunConfig
) -> None:
    """Refuse copies of a run with other settings by CannotResume, a line for each."""
    theirs = remote.settings(step, found)
    here = config.on_processor(native_bfloat16=has_native_bfloat16()).trajectory_json()
    differences = changed_settings(theirs["spec"], json.loads(here)["spec"])
    if differences:
        raise CannotResume(
            f"{where}: got {new}: the copies at {shown(remote.url)} were made with {old}; another "
            "spec.checkpoint.copyTo or name of the job, or the old value"
            for where, old, new in differences
        )


def _restore_run_files(remote: RemoteStore, step: int, found: Manifest, run_folder: Path) -> None:
    """Restore the run's other resume state if it is missing."""
    journal = run_folder / CHECKPOINTS_FOLDER / JOURNAL_FILE
    for target in (run_folder / METRICS_FILE, run_folder / FETCHED_FILE, journal):
        if not target.exists():
            data = remote.read(step, RUN_FOLDER, target.name)
            durable.write_file(target, data, RESTORE_FILE)
    Journal(journal).append(CheckpointSaved.of(step, found.files))


def _text(lines: list[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)
