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
    """A line of a pod's log; its text is without the time and the line end."""

    time: Time
    pod: str
    text: str = field(compare=False)


def parse_stamp(line: str) -> tuple[Time, str] | None:
    """The time before a line, to the microsecond, and the line; None where there is no time."""
    stamp, _, text = line.partition(" ")
    try:
        time = datetime.datetime.fromisoformat(stamp)
    except ValueError:
        return None
    return (time, text) if time.tzinfo else None


def stamped(pod: str, lines: Iterable[str]) -> Iterator[LogLine]:
    """The lines of a pod's log, with times that never fall.

    The two outputs of a container share a file, so a line may be stamped a little before the one
    above it; a line without a time belongs to the one above it.
    """
    time = _EPOCH
    for line in lines:
        parsed = parse_stamp(line)
        text = line if parsed is None else parsed[1]
        time = time if parsed is None else max(time, parsed[0])
        yield LogLine(time, pod, text)


def merged(streams: Iterable[Iterable[LogLine]], tail: int | None) -> Iterable[LogLine]:
    """The lines of all streams by time, or the last of them; each stream is in that order."""
    lines = heapq.merge(*streams)
    return lines if tail is None else deque(lines, maxlen=tail)


class Position:
    """How far a log was read, so that it can be read on from the second in which it stopped.

    Nothing from before `time` is wanted.
    """

    def __init__(self, time: Time = _EPOCH) -> None:
        self.time = time
        self._seen = 0

    @property
    def since(self) -> str:
        """The second of the last line, as the API server wants it."""
        return rfc3339(self.time)

    def noted(self, lines: Iterable[LogLine]) -> Iterator[LogLine]:
        """The same lines; each that is taken was read."""
        for line in lines:
            self._seen = self._seen + 1 if line.time == self.time else 1
            self.time = line.time
            yield line

    def rest(self, lines: Iterable[LogLine]) -> Iterator[LogLine]:
        """Those of lines that begin in that second which were not read; notes them."""
        return self.noted(self._unread(lines))

    def _unread(self, lines: Iterable[LogLine]) -> Iterator[LogLine]:
        reached, known = self.time, self._seen
        for line in lines:
            if line.time == reached and known:
                known -= 1
            elif line.time >= reached:
                yield line


class ReorderBuffer:
    """Holds lines for a moment, in case an earlier one of another pod is still on its way."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._heap: list[tuple[Time, int, float, LogLine]] = []
        self._count = 0

    def put(self, line: LogLine, now: float) -> None:
        """A line has come; `now` is in seconds of a clock that never goes back."""
        self._count += 1
        heapq.heappush(self._heap, (line.time, self._count, now, line))

    def take(self, now: float) -> Iterator[LogLine]:
        """The lines that were held long enough at a moment, by time."""
        while self._heap and now - self._heap[0][2] >= self._seconds:
            yield heapq.heappop(self._heap)[3]
