"""Checkpoints: folders that are complete or do not exist.

::

    checkpoints/
      step-000010/            complete: manifest.json lists every file with size and sha256
      step-000020/
      latest -> step-000020   for people and tools; a restart trusts the manifests instead
      best -> step-000010     with `checkpoint.best`
      .step-000030.2.partial/ being written after two rewinds of the job

Ranks write their files into the partial folder and answer with entries. The controller checks them,
writes configuration and manifest, and renames the folder. After a rewind, the partial folder of a
late rank no longer exists. Does not import torch: the controller imports this module.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import ppojob_trainer
from ppojob_api.run_layout import CHECKPOINTS_FOLDER
from ppojob_trainer import durable
from ppojob_trainer.checkpoint import identity, manifest
from ppojob_trainer.checkpoint.identity import Identity
from ppojob_trainer.checkpoint.manifest import (
    MANIFEST_NAME,
    Manifest,
    Progress,
    check_content,
    check_size,
    entry_of,
)
from ppojob_trainer.errors import CheckpointLost, DamagedCheckpoint
from ppojob_trainer.rpc.messages.saving import FileEntry

CONFIG_NAME: Final = "config.json"
LATEST_NAME: Final = "latest"
BEST_NAME: Final = "best"

CONFIG_POINT: Final = durable.point("checkpoint.config", *durable.FILE_ACTS)
MANIFEST_POINT: Final = durable.point("checkpoint.manifest", *durable.FILE_ACTS)
PARTIAL_POINT: Final = durable.point("checkpoint.partial", "fsync_folder")
REPLACE_POINT: Final = durable.point("checkpoint.replace", *durable.RENAME_ACTS)
SEAL_POINT: Final = durable.point("checkpoint.seal", *durable.RENAME_ACTS)
LATEST_POINT: Final = durable.point("checkpoint.latest", "write", *durable.RENAME_ACTS)
PRUNE_POINT: Final = durable.point("checkpoint.prune", *durable.RENAME_ACTS)
SWEEP_POINT: Final = durable.point("checkpoint.sweep", *durable.REMOVE_ACTS)

_SEALED = re.compile(r"step-(\d{6,})")
_SWEPT = re.compile(r"\.step-\d+(\.\d+)?\.(partial|damaged|pruned)|\.(latest|best)\.aside")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint: its folder and its manifest."""

    folder: Path
    manifest: Manifest

    @property
    def step(self) -> int:
        return self.manifest.progress.step


@dataclass(frozen=True, slots=True)
class Latest:
    """The newest intact checkpoint, None if none was ever saved, and newer damaged ones."""

    checkpoint: Checkpoint | None
    refusals: tuple[tuple[int, DamagedCheckpoint], ...]  # step of each, and its damage


def folder_name(step: int) -> str:
    """Return the folder name of a complete checkpoint."""
    return f"step-{step:06d}"


def step_of(name: str) -> int | None:
    """Return the step of a folder name; None if it is not a complete checkpoint's."""
    match = _SEALED.fullmatch(name)
    return None if match is None else int(match[1])


def steps_in(root: Path) -> tuple[int, ...]:
    """Return the steps of all complete checkpoints of a folder, also damaged ones, ascending."""
    found = (step_of(path.name) for path in root.iterdir() if path.is_dir())
    return tuple(sorted(step for step in found if step is not None))


def has_checkpoint(run_folder: Path) -> bool:
    """Whether a run has a complete checkpoint, intact or damaged."""
    root = run_folder / CHECKPOINTS_FOLDER
    return root.is_dir() and bool(steps_in(root))


class CheckpointStore:
    """The checkpoints of one job in one folder, which is created if missing.

    Only the job's controller may write, one thread at a time: it is the only one by its
    StatefulSet, or by the lock of the run folder.
    """

    def __init__(self, root: Path, owner: Identity) -> None:
        self.root = root
        self._identity = owner
        self._verified: set[int] = set()
        durable.make_folder(root, parents=True, exist_ok=True)

    @property
    def settings(self) -> bytes:
        """Return the settings that identify the job's checkpoints, see `Identity.document`."""
        return self._identity.document()

    def edited(self, files: Mapping[str, str]) -> list[str]:
        """Return the paths of changed files; the next checkpoints store their new digests."""
        known = self._identity.files
        self._identity = replace(self._identity, files={**known, **files})
        return identity.edited(known, files)

    def begin(self, step: int, *, rewinds: int = 0) -> Path:
        """Create the folder where the ranks write, and remove all other incomplete folders.

        A restarted controller that calls it with the same numbers gets the same folder.
        """
        folder = self.root / f".step-{step:06d}.{rewinds}.partial"
        self.clear(keep=folder)
        durable.make_folder(folder, exist_ok=True)
        return folder

    def clear(self, keep: Path | None = None) -> None:
        """Remove every incomplete folder but `keep`; no checkpoint may be being written there."""
        for path in incomplete(self.root):
            if path != keep:
                durable.remove_tree(path, SWEEP_POINT)

    def complete(self, pending: Path, progress: Progress, files: Iterable[FileEntry]) -> Checkpoint:
        """Complete a checkpoint whose files the ranks have written and synced; durable on return.

        A step that is saved already, by a controller that was killed after the rename, is
        unchanged; a damaged one is replaced.

        Raises:
            DamagedCheckpoint: a listed file is missing or of another size.
            StorageError: the disk refused; earlier checkpoints are unchanged.
        """
        target = self.root / folder_name(progress.step)
        if target.exists() and self.is_whole(progress.step):
            self.clear()
            self._point(LATEST_NAME, target)
            return self.read(progress.step)
        document = self._identity.document()
        durable.write_file(pending / CONFIG_NAME, document, CONFIG_POINT)
        config = entry_of(pending, CONFIG_NAME, "controller", 0)
        saved = Manifest(
            job_uid=self._identity.job_uid,
            config_sha256=config.sha256,
            code_version=ppojob_trainer.version(),
            progress=progress,
            files=tuple(sorted((config, *files), key=lambda entry: entry.path)),
        )
        for entry in saved.files:
            check_size(pending, entry)
        durable.write_file(pending / MANIFEST_NAME, manifest.encode(saved), MANIFEST_POINT)
        for folder, _, _ in os.walk(pending, topdown=False):
            durable.fsync_folder(Path(folder), PARTIAL_POINT)
        damaged = self.root / f".{target.name}.damaged"
        if target.exists():
            durable.rename(target, damaged, REPLACE_POINT)
        durable.rename(pending, target, SEAL_POINT)
        durable.remove_tree(damaged, SWEEP_POINT)
        self._verified.add(progress.step)
        self._point(LATEST_NAME, target)
        return Checkpoint(folder=target, manifest=saved)

    def steps(self) -> tuple[int, ...]:
        """Return the steps of all complete checkpoints, also damaged ones, ascending."""
        return steps_in(self.root)

    def read(self, step: int) -> Checkpoint:
        """Read one checkpoint: manifest, identity, and the size of each file; not its bytes.

        Raises:
            DamagedCheckpoint: names the file.
            CannotResume: it is of another job, configuration or format.
        """
        folder = self.root / folder_name(step)
        found = manifest.read(folder)
        if found.progress.step != step:
            name = f"{folder.name}/{MANIFEST_NAME}"
            raise DamagedCheckpoint(
                name, f"got step {found.progress.step}: it is of another checkpoint"
            )
        identity.check(self._identity, found, folder)
        for entry in found.files:
            check_size(folder, entry)
        return Checkpoint(folder=folder, manifest=found)

    def layout_change(self, checkpoint: Checkpoint) -> str | None:
        """Return the first layout setting that differs from a checkpoint's; None without one."""
        theirs = identity.settings_of(checkpoint.manifest, checkpoint.folder).get("layout")
        ours = json.loads(self._identity.config).get("layout")
        difference = next(identity.differences(theirs, ours, "spec"), None)
        return None if difference is None else "{}: {} -> {}".format(*difference)

    def changed_files(self, checkpoint: Checkpoint) -> list[str]:
        """Return the paths of reward files that changed since a checkpoint was written."""
        known = identity.settings_of(checkpoint.manifest, checkpoint.folder).get("files")
        return identity.edited(known if isinstance(known, dict) else {}, self._identity.files)

    def is_whole(self, step: int) -> bool:
        """Whether a step has an intact checkpoint; its bytes are verified once per process."""
        try:
            self._verify(step, again=False)
        except DamagedCheckpoint:
            return False
        return True

    def _verify(self, step: int, *, again: bool) -> Checkpoint:
        """Read a checkpoint and check its bytes; `again`: also those that were checked before."""
        is_checked = step in self._verified and not again
        self._verified.discard(step)
        checkpoint = self.read(step)
        if not is_checked:
            for entry in checkpoint.manifest.files:
                check_content(checkpoint.folder, entry)
        self._verified.add(step)
        return checkpoint

    def latest(self) -> Latest:
        """Return the newest intact checkpoint; all its bytes are verified.

        Raises:
            CannotResume: it is of another job, configuration or format.
            CheckpointLost: there are checkpoints, but all are damaged.
        """
        refusals: list[tuple[int, DamagedCheckpoint]] = []
        for step in reversed(self.steps()):
            try:
                checkpoint = self._verify(step, again=True)
            except DamagedCheckpoint as damage:
                refusals.append((step, damage))
            else:
                return Latest(checkpoint=checkpoint, refusals=tuple(refusals))
        if refusals:
            damages = "; ".join(str(damage) for _, damage in refusals)
            raise CheckpointLost(
                str(self.root),
                f"all checkpoints are damaged: {damages}; restore the files from a copy, or start "
                "a new run in another folder",
            )
        return Latest(checkpoint=None, refusals=())

    def recover(self) -> Latest:
        """As ``latest``, after removing incomplete folders of a killed run."""
        self.clear()
        found = self.latest()
        if found.checkpoint is not None:
            self._point(LATEST_NAME, found.checkpoint.folder)
        return found

    def prune(
        self, keep_last: int, best: int | None = None, held: int | None = None
    ) -> tuple[int, ...]:
        """Remove all checkpoints but the last `keep_last` intact ones, `best` and `held`.

        Only verified checkpoints count as intact. `best` is the step of the link of this name;
        `held` is that of a checkpoint that is being read.

        Returns:
            Removed steps, newest first.
        """
        kept = 0
        removed = []
        if best is not None:
            self._point(BEST_NAME, self.root / folder_name(best))
        for step in reversed(self.steps()):
            if kept >= keep_last:
                if step in {best, held}:
                    continue
                # Renamed first: a partly removed checkpoint must not look like a damaged one.
                folder = self.root / folder_name(step)
                pruned = self.root / f".{folder.name}.pruned"
                durable.rename(folder, pruned, PRUNE_POINT)
                durable.remove_tree(pruned, SWEEP_POINT)
                self._verified.discard(step)
                removed.append(step)
            elif self.is_whole(step):
                kept += 1
        return tuple(removed)

    def _point(self, name: str, target: Path) -> None:
        link = self.root / name
        if link.is_symlink() and link.readlink() == Path(target.name):
            return
        temporary = self.root / f".{name}.aside"
        with durable.act(LATEST_POINT, "write", link):
            temporary.unlink(missing_ok=True)
            temporary.symlink_to(target.name)
        durable.rename(temporary, link, LATEST_POINT)


def incomplete(root: Path) -> list[Path]:
    """Return the incomplete folders of a run, which its next start removes."""
    return sorted(path for path in root.iterdir() if _SWEPT.fullmatch(path.name))
