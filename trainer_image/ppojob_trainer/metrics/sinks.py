"""Metric sinks: one ``write`` per step, and a cut on a rewind; ``metrics.jsonl`` is durable."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from ppojob_trainer import durable
from ppojob_trainer.errors import DamagedCheckpoint

METRICS_POINT: Final = durable.point("metrics", *durable.LINE_ACTS)
METRICS_CUT_POINT: Final = durable.point("metrics.cut", *durable.TRUNCATE_ACTS)


class Sink:
    """Receives the metrics of each step."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of a step, in step order."""
        raise NotImplementedError

    def cut_after(self, step: int) -> None:
        """Remove all steps after ``step``, which are written again, and are equal."""

    def close(self) -> None:
        """Release files, if some are open."""


class _Line(msgspec.Struct):
    step: int


class JsonLines(Sink):
    """``metrics.jsonl``: one JSON object per step, on disk when ``write`` returns.

    Keys are ``step``, ``time`` (unix seconds) and the sorted metrics; NaN and infinity are null.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._clock = clock

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append a step's line; on StorageError the file is unchanged."""
        line = encode_line(step, self._clock(), metrics)
        durable.append_line(self.path, line, METRICS_POINT)

    def cut_after(self, step: int) -> None:
        """Remove the lines of later steps; DamagedCheckpoint if a line is invalid."""
        kept_bytes = sum(len(line) + 1 for line, at in self._lines() if at <= step)
        if self.path.exists() and self.path.stat().st_size != kept_bytes:
            durable.truncate(self.path, kept_bytes, METRICS_CUT_POINT)

    def _lines(self) -> list[tuple[bytes, int]]:
        found = []
        last = -1
        for number, line in enumerate(durable.read_lines(self.path), start=1):
            where = f"{self.path.name}:{number}"
            try:
                step = msgspec.json.decode(line, type=_Line).step
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise DamagedCheckpoint(where, f"no metrics line: {error}") from error
            if step < last:
                raise DamagedCheckpoint(
                    where, f"got step {step} after step {last}: the file was changed"
                )
            last = step
            found.append((line, step))
        return found


@dataclass(frozen=True, slots=True)
class Sinks(Sink):
    """All sinks of a job as one sink, ``metrics.jsonl`` first."""

    sinks: tuple[Sink, ...]

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        for sink in self.sinks:
            sink.write(step, metrics)

    def cut_after(self, step: int) -> None:
        for sink in self.sinks:
            sink.cut_after(step)

    def close(self) -> None:
        for sink in self.sinks:
            sink.close()


def encode_line(step: int, unix_seconds: float, metrics: Mapping[str, float]) -> bytes:
    """Return a line of ``metrics.jsonl`` without newline; NaN and infinities become null."""
    return msgspec.json.encode(
        {"step": step, "time": unix_seconds, **dict(sorted(metrics.items()))}
    )
