"""Where metrics are written: one ``write`` a step, and a way back when steps are thrown away.

``metrics.jsonl`` is the record and is written durably; TensorBoard is a view of it for people.
"""

import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

import msgspec
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from ppojob_trainer import durable
from ppojob_trainer.errors import DamagedCommit

METRICS_POINT: Final = durable.point("metrics", *durable.LINE_ACTS)
METRICS_CUT_POINT: Final = durable.point("metrics.cut", *durable.TRUNCATE_ACTS)

_EVENTS = re.compile(r"events\.out\.tfevents\.(\d+)\.ppojob")


class Sink(Protocol):
    """Takes the metrics of each step."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take a step's metrics; steps come in ascending order."""

    def cut_after(self, step: int) -> None:
        """Forget all steps above ``step``: they will come again."""

    def close(self) -> None:
        """Let go of files."""


class _Line(msgspec.Struct):
    step: int


class JsonLines:
    """``metrics.jsonl``: one JSON object a step, on the disk when ``write`` returns.

    Keys are ``step``, ``time`` (unix seconds) and the metrics sorted by name. JSON knows no NaN
    and no infinity: both are written as null.

    Args:
        path: the file.
        clock: unix seconds.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._clock = clock

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append a step's line.

        Raises:
            StorageError: the disk refused; the file is as before.
        """
        line = encode_line(step, self._clock(), metrics)
        durable.append_line(self.path, line, METRICS_POINT)

    def cut_after(self, step: int) -> None:
        """Drop the lines of all later steps, durably.

        Raises:
            DamagedCommit: a line is no metrics line.
            StorageError: the disk refused.
        """
        kept_bytes = sum(len(line) + 1 for line, at in self._lines() if at <= step)
        if self.path.exists() and self.path.stat().st_size != kept_bytes:
            durable.truncate(self.path, kept_bytes, METRICS_CUT_POINT)

    def close(self) -> None:
        """Nothing is kept open."""

    def _lines(self) -> list[tuple[bytes, int]]:
        found = []
        last = -1
        for number, line in enumerate(durable.read_lines(self.path), start=1):
            try:
                step = msgspec.json.decode(line, type=_Line).step
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                reason = f"no metrics line: {error}"
                raise DamagedCommit(f"{self.path.name}:{number}", reason) from error
            if step < last:
                reason = f"got step {step} after step {last}: the file was changed"
                raise DamagedCommit(f"{self.path.name}:{number}", reason)
            last = step
            found.append((line, step))
        return found


class TensorBoard:
    """TensorBoard event files in one folder.

    Nothing is taken out of a file once written: after a cut the next file begins with a session
    start, at which TensorBoard itself drops all points from that step on.

    Args:
        folder: made where it is absent; files are numbered, since TensorBoard reads them by name.
        clock: unix seconds.
    """

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.time) -> None:
        self.folder = folder
        self._clock = clock
        self._file: BinaryIO | None = None
        self._first_step: int | None = None

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the finite metrics as scalars.

        Raises:
            StorageError: the disk refused.
        """
        values = [
            Summary.Value(tag=name, simple_value=value)
            for name, value in sorted(metrics.items())
            if math.isfinite(value)
        ]
        self._add(Event(wall_time=self._clock(), step=step, summary=Summary(value=values)))

    def cut_after(self, step: int) -> None:
        """Begin a new file that drops all points above ``step``."""
        self.close()
        self._first_step = step + 1

    def close(self) -> None:
        """Close the present file."""
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


@dataclass(frozen=True, slots=True)
class Sinks:
    """All sinks of a job behind one; itself a sink.

    Attributes:
        sinks: in the order in which they are written; the record comes first.
    """

    sinks: tuple[Sink, ...]

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Give a step's metrics to each."""
        for sink in self.sinks:
            sink.write(step, metrics)

    def cut_after(self, step: int) -> None:
        """Have each forget all steps above ``step``."""
        for sink in self.sinks:
            sink.cut_after(step)

    def close(self) -> None:
        """Close each."""
        for sink in self.sinks:
            sink.close()


def encode_line(step: int, unix_seconds: float, metrics: Mapping[str, float]) -> bytes:
    """One line of ``metrics.jsonl`` without its newline; NaN and infinities become null."""
    taken = {"step", "time"} & metrics.keys()
    assert not taken, f"{taken} are the line's own keys"
    return msgspec.json.encode(
        {"step": step, "time": unix_seconds, **dict(sorted(metrics.items()))}
    )
