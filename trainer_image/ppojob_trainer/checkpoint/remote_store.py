"""Remote checkpoint store: the checkpoints of a run at a URL or a path. Without torch."""

import contextlib
import hashlib
import json
import posixpath
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from ppojob_api.run_layout import CHECKPOINTS_FOLDER, EXPORT_FOLDER
from ppojob_trainer import durable, failpoints
from ppojob_trainer.checkpoint import manifest
from ppojob_trainer.checkpoint.manifest import MANIFEST_NAME, Manifest, check_content
from ppojob_trainer.checkpoint.store import CONFIG_NAME, folder_name, step_of
from ppojob_trainer.errors import DamagedCheckpoint
from ppojob_trainer.remote_files import Log, permanent_errors, with_retries
from ppojob_trainer.rpc.messages.saving import FileEntry

RUN_FOLDER: Final = "run"
"""Folder in a copy of a checkpoint with the run's other resume state."""
COPY_EXPORT: Final = failpoints.declare("copied.export")


class RemoteStore:
    """The checkpoints of one run in a store, by the URL or path of their parent folder.

    Every method retries while the store fails; `field` is named in errors.
    """

    def __init__(self, url: str, field: str, tell: Log) -> None:
        self.url, self._field, self._tell = url, field, tell
        self._system, self._root = self._again(self._open)

    def _again(self, act: Callable[[], Any]) -> Any:
        def attempt() -> Any:
            with permanent_errors(self._field, self.url, "read and write"):
                return act()

        return with_retries(attempt, self.url, "reached", self._tell)

    def _open(self) -> Any:
        import fsspec  # imported late: every controller loads this module, and few copy

        own = {} if "://" in self.url else {"auto_mkdir": True}
        return fsspec.url_to_fs(self.url, use_listings_cache=False, skip_instance_cache=True, **own)

    def _checkpoint(self, step: int, *path: str) -> str:
        return posixpath.join(self._root, CHECKPOINTS_FOLDER, folder_name(step), *path)

    def exists(self) -> bool:
        return bool(self._again(lambda: self._system.exists(self._root)))

    def steps(self) -> list[int]:
        """Return the steps of all copies, complete or not, ascending."""

        def listed() -> list[str]:
            try:
                return list(self._system.ls(f"{self._root}/{CHECKPOINTS_FOLDER}", detail=False))
            except (FileNotFoundError, NotADirectoryError):
                return []

        names = map(posixpath.basename, (name.rstrip("/") for name in self._again(listed)))
        return sorted(step for name in names if (step := step_of(name)) is not None)

    def is_complete(self, step: int) -> bool:
        """Whether a copy has its manifest, which is written last and removed first."""
        path = self._checkpoint(step, MANIFEST_NAME)
        return bool(self._again(lambda: self._system.exists(path)))

    def complete(self) -> Iterator[int]:
        return (step for step in reversed(self.steps()) if self.is_complete(step))

    def manifest(self, step: int) -> Manifest:
        name = f"{folder_name(step)}/{MANIFEST_NAME}"
        return manifest.decode(self.read(step, MANIFEST_NAME), name)

    def settings(self, step: int, found: Manifest) -> dict[str, Any]:
        """Read the settings of a copy; raises DamagedCheckpoint if they were changed."""
        path = next((file.path for file in found.files if file.sha256 == found.config_sha256), "")
        data = self.read(step, path)
        if hashlib.sha256(data).hexdigest() != found.config_sha256:
            raise DamagedCheckpoint(f"{folder_name(step)}/{path}", "it was changed")
        settings: dict[str, Any] = json.loads(data)
        return settings

    def read(self, step: int, *path: str) -> bytes:
        """Read a small file of a copy."""
        remote = self._checkpoint(step, *path)
        found: bytes = self._again(_existing(step, *path)(lambda: self._system.cat_file(remote)))
        return found

    def download(self, step: int, files: Iterable[FileEntry], root: Path) -> Path:
        """Download and verify files of a copy, into a partial folder."""
        folder = root / f".{folder_name(step)}.partial"
        for entry in files:
            remote, target = self._checkpoint(step, entry.path), folder / entry.path
            durable.make_folder(target.parent, parents=True, exist_ok=True)
            get = partial(self._system.get_file, remote, str(target))
            self._again(_existing(step, entry.path)(get))
            try:
                check_content(folder, entry)
            except DamagedCheckpoint as damaged:  # it was damaged in the store
                name = posixpath.join(folder_name(step), entry.path)
                raise DamagedCheckpoint(name, damaged.reason) from None
        return folder

    def read_run_file(self, name: str) -> bytes:
        """Read a small file of the run's folder; empty if missing."""

        def act() -> bytes:
            with contextlib.suppress(FileNotFoundError):
                return bytes(self._system.cat_file(posixpath.join(self._root, name)))
            return b""

        content: bytes = self._again(act)
        return content

    def upload(self, step: int, path: str, source: Path | bytes) -> None:
        self._upload(self._checkpoint(step, path), source)

    def _upload(self, remote: str, source: Path | bytes) -> None:
        def act() -> None:
            if isinstance(source, bytes):
                self._system.pipe_file(remote, source)
                return
            self._system.put_file(str(source), remote)
            size, uploaded = source.stat().st_size, self._system.info(remote)["size"]
            if uploaded != size:
                raise OSError(f"{source.name}: {uploaded} of {size} bytes were uploaded")

        self._again(act)

    def remove(self, step: int) -> None:
        """Remove a copy, its manifest first: what an interrupted removal leaves is not a copy."""
        if self.is_complete(step):
            self._remove(self._checkpoint(step, MANIFEST_NAME))
        self._remove(self._checkpoint(step))

    def _remove(self, path: str) -> None:
        def act() -> None:
            if self._system.exists(path):
                self._system.rm(path, recursive=True)

        self._again(act)

    def upload_export(self, folder: Path) -> None:
        """Replace the copy of the export; config.json is written last and marks it complete."""
        target = f"{self._root}/{EXPORT_FOLDER}"
        self._remove(f"{target}/{CONFIG_NAME}")
        self._remove(target)
        names = [
            path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
        ]
        for name in sorted(names, key=lambda name: (name == CONFIG_NAME, name)):
            failpoints.hit(COPY_EXPORT)
            self._upload(f"{target}/{name}", folder / name)


@contextlib.contextmanager
def _existing(step: int, *path: str) -> Iterator[None]:
    """Report a file missing in a copy, which no retry can fix."""
    try:
        yield
    except FileNotFoundError:
        raise DamagedCheckpoint(posixpath.join(folder_name(step), *path), "it is missing") from None


def complete_download(folder: Path, own: Manifest, file_point: str, fsync_point: str) -> None:
    """Write the manifest into a partial folder, and sync all its files; it can then be renamed."""
    durable.write_file(folder / MANIFEST_NAME, manifest.encode(own), file_point)
    for path in (*folder.rglob("*"), folder):
        durable.fsync_file(path, fsync_point)
