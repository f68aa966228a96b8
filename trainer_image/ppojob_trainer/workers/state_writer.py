"""State writer: writes a rank's shard of checkpoints, at once or in the background from a copy.

The copy is in host memory and is made on the main thread, between two requests. A thread writes it:
hashing, writing and fsync release the interpreter lock. There is one copy, so writes do not
overlap.
"""

import contextlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from threading import Thread

from ppojob_trainer import durable
from ppojob_trainer.checkpoint.tensors import HostCopies, Shard
from ppojob_trainer.errors import StorageError
from ppojob_trainer.rpc import methods
from ppojob_trainer.rpc.messages.saving import AskWritten, FileEntry, Saved, SaveShards, Written
from ppojob_trainer.rpc.server import Route

_log = logging.getLogger(__name__)
Write = Callable[[Path], list[FileEntry]]
"""Writes a state into the folder of a checkpoint, durably."""
StateOf = Callable[[SaveShards], Write]
"""Returns a writer of the current state; in the background the state may change meanwhile."""


def shard_writer(files: Callable[[], Sequence[Shard]]) -> StateOf:
    """Return a writer of the files of a rank's models, which change with the next update."""
    copies = HostCopies()

    def state(request: SaveShards) -> Write:
        if not request.in_background:
            return partial(_write, files())
        return partial(_write_in_background, [copies.of(file) for file in files()])

    return state


def _write(files: Sequence[Shard], folder: Path) -> list[FileEntry]:
    return [file.write(folder) for file in files]


def _write_in_background(files: Sequence[Shard], folder: Path) -> list[FileEntry]:
    """Write the files, but leave disk space for the rows of the current step."""
    durable.need_space(folder, sum(file.nbytes for file in files))
    try:
        return _write(files, folder)
    except StorageError:
        for file in files:
            with contextlib.suppress(OSError):
                (folder / file.path).unlink(missing_ok=True)
        raise


class StateWriter:
    """Handles the controller's requests for a rank's shard of checkpoints."""

    def __init__(self, run_folder: Path, state: StateOf) -> None:
        self._run_folder = run_folder
        self._state = state
        self._copied: tuple[int, Write] | None = None  # of a step
        self._begun: tuple[str, Future[list[FileEntry]]] | None = None  # by folder

    def routes(self) -> list[Route]:
        return [
            Route(methods.BARRIER, lambda _: self._wait()),
            Route(methods.SAVE_SHARDS, self._save),
            Route(methods.SHARDS_WRITTEN, self._written),
        ]

    def invalidate(self) -> None:
        """Drop the copy, since the state was restored."""
        self._copied = None

    def _save(self, request: SaveShards) -> Saved:
        self._wait()
        step, write = self._copied or (None, None)
        if write is None or step != request.step:
            write = self._state(request)
            self._copied = (request.step, write) if request.in_background else None
        act = partial(write, self._run_folder / request.folder)
        if not request.in_background:
            return Saved(act())
        self._begun = request.folder, _run_in_background(act)
        return Saved([])

    def _written(self, request: AskWritten) -> Written:
        folder, files = self._begun or ("", Future[list[FileEntry]]())
        if folder != request.folder or not files.done():
            return Written()
        try:
            return Written(files.result())
        except StorageError as problem:
            return Written(refusal=str(problem))

    def _wait(self) -> None:
        if self._begun is not None:
            wait([self._begun[1]])


def _run_in_background(act: Callable[[], list[FileEntry]]) -> Future[list[FileEntry]]:
    """Run it on a daemon thread, which does not delay the end of the process."""
    made = Future[list[FileEntry]]()

    def run() -> None:
        try:
            made.set_result(act())
        except BaseException as problem:
            _log.exception("a checkpoint was not written")
            made.set_exception(problem)

    Thread(target=run, name="checkpoint", daemon=True).start()
    return made
