"""Merge of log lines of many pods by time. Pure."""

import datetime
import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from ppojob_operator.conditions import rfc3339
from ppojob_operator.state import Time

_EPOCH: Final = datetime.datetime.fromtimestamp(0, datetime.UTC)


@dataclass(frozen=True, slots=True, order=True)
class LogLine:
    """A line of a pod's log; its text excludes the time and the line end."""

    time: Time
    pod: str
    text: str = field(compare=False)


def parse_stamp(line: str) -> tuple[Time, str] | None:
    """Split the time, to the microsecond, from a line; None for a line without a time."""
    stamp, _, text = line.partition(" ")
    try:
        time = datetime.datetime.fromisoformat(stamp)
    except ValueError:
        return None
    return (time, text) if time.tzinfo else None


def stamped(pod: str, lines: Iterable[str]) -> Iterator[LogLine]:
    """Parse a pod's log, with non-decreasing times.

    The two outputs of a container share a file, so a line's time may be slightly before that of the
    previous line. A line without a time belongs to the previous line.
    """
    time = _EPOCH
    for line in lines:
        parsed = parse_stamp(line)
        text = line if parsed is None else parsed[1]
        time = time if parsed is None else max(time, parsed[0])
        yield LogLine(time, pod, text)


def merged(streams: Iterable[Iterable[LogLine]], tail: int | None) -> Iterable[LogLine]:
    """Merge sorted streams by time; with `tail`, only the last lines."""
    lines = heapq.merge(*streams)
    return lines if tail is None else deque(lines, maxlen=tail)


class Position:
    """Position in a log, to resume it within the second at which reading stopped.

    Lines before `time` are skipped.
    """

    def __init__(self, time: Time = _EPOCH) -> None:
        self.time = time
        self._seen = 0

    @property
    def since(self) -> str:
        """The second of the last line, in the format of the API server."""
        return rfc3339(self.time)

    def noted(self, lines: Iterable[LogLine]) -> Iterator[LogLine]:
        """Yield the same lines, and record the position."""
        for line in lines:
            self._seen = self._seen + 1 if line.time == self.time else 1
            self.time = line.time
            yield line

    def rest(self, lines: Iterable[LogLine]) -> Iterator[LogLine]:
        """Yield the unread ones of lines from that second on, and record the position."""
        return self.noted(self._unread(lines))

    def _unread(self, lines: Iterable[LogLine]) -> Iterator[LogLine]:
        reached, known = self.time, self._seen
        for line in lines:
            if line.time == reached and known:
                known -= 1
            elif line.time >= reached:
                yield line


class ReorderBuffer:
    """Holds lines back for a while, in case earlier lines of other pods arrive late."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._heap: list[tuple[Time, int, float, LogLine]] = []
        self._count = 0

    def put(self, line: LogLine, now: float) -> None:
        """Add a line; `now` is in seconds of a monotonic clock."""
        self._count += 1
        heapq.heappush(self._heap, (line.time, self._count, now, line))

    def take(self, now: float) -> Iterator[LogLine]:
        """Remove and yield the lines that were held long enough, by time."""
        while self._heap and now - self._heap[0][2] >= self._seconds:
            yield heapq.heappop(self._heap)[3]
