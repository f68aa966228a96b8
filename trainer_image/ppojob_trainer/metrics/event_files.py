"""Metric sink of TensorBoard event files; a module of its own, since the import is slow."""

import math
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from ppojob_trainer import durable
from ppojob_trainer.metrics.sinks import Sink

_EVENTS = re.compile(r"events\.out\.tfevents\.(\d+)\.ppojob")


class TensorBoard(Sink):
    """TensorBoard event files in one folder.

    Files are append-only: after a cut, a new file begins with a session start, at which TensorBoard
    drops all later points. TensorBoard reads the files in the order of their numbers.
    """

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.time) -> None:
        self.folder = folder
        self._clock = clock
        self._file: BinaryIO | None = None
        self._first_step: int | None = None

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the finite metrics as scalars."""
        values = [
            Summary.Value(tag=name, simple_value=value)
            for name, value in sorted(metrics.items())
            if math.isfinite(value)
        ]
        self._add(Event(wall_time=self._clock(), step=step, summary=Summary(value=values)))

    def cut_after(self, step: int) -> None:
        """Begin a new file that drops all points after a step."""
        self.close()
        self._first_step = step + 1

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _add(self, event: Any) -> None:
        try:
            file = self._file or self._open()
            RecordWriter(file).write(event.SerializeToString())
            file.flush()
        except OSError as error:
            durable.raise_storage_error(self.folder, "write", error)

    def _open(self) -> BinaryIO:
        self.folder.mkdir(parents=True, exist_ok=True)
        numbers = [
            int(match[1]) for path in self.folder.iterdir() if (match := _EVENTS.match(path.name))
        ]
        name = f"events.out.tfevents.{max(numbers, default=0) + 1:010d}.ppojob"
        self._file = (self.folder / name).open("xb")
        now = self._clock()
        self._add(Event(wall_time=now, file_version="brain.Event:2"))
        if self._first_step is not None:
            start = SessionLog(status=SessionLog.START)
            self._add(Event(wall_time=now, step=self._first_step, session_log=start))
        return self._file
