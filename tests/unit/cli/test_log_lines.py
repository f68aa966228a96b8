import datetime
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppojob_cli.cluster import log_lines
from ppojob_cli.figures import seconds_of
from ppojob_operator.state import Time

START = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
times = st.integers(0, 3_000_000).map(lambda after: START + microseconds(after))
streams = st.lists(st.lists(times, max_size=8).map(sorted), min_size=1, max_size=5)


def microseconds(count: int) -> datetime.timedelta:
    return datetime.timedelta(microseconds=count)


def lines_of(stream: list[Time], pod: int) -> list[log_lines.LogLine]:
    return [log_lines.LogLine(time, f"pod-{pod}", f"{pod}.{i}") for i, time in enumerate(stream)]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("2026-01-02T03:04:05.5Z words", (500_000, "words")),
        ("2026-01-02T03:04:05.000001001Z words", (1, "words")),
        ("2026-01-02T03:04:05Z", (0, "")),
        ("2026-01-02T03:04:05Z   indented", (0, "  indented")),
    ],
)
def test_stamps(line: str, expected: tuple[int, str]) -> None:
    after, text = expected
    assert log_lines.parse_stamp(line) == (START + microseconds(after), text)


@pytest.mark.parametrize("line", ["", "words", "2026-01-02 words", "2026-13-02T03:04:05Z words"])
def test_no_stamp(line: str) -> None:
    assert log_lines.parse_stamp(line) is None


def test_a_line_without_a_time_stays_behind_the_one_above_it() -> None:
    lines = ["2026-01-02T03:04:05.2Z a", "trace", "2026-01-02T03:04:05.1Z b"]
    said = list(log_lines.stamped("x", lines))
    assert [line.text for line in said] == ["a", "trace", "b"]
    assert len({line.time for line in said}) == 1


@given(streams, st.none() | st.integers(1, 10))
def test_merged_lines_are_in_order_and_complete(given_streams: list[list[Time]], tail: int | None):
    logs = [lines_of(stream, pod) for pod, stream in enumerate(given_streams)]
    whole = list(log_lines.merged(logs, None))
    assert [line.time for line in whole] == sorted(line.time for log in logs for line in log)
    for pod, log in enumerate(logs):
        assert [line for line in whole if line.pod == f"pod-{pod}"] == log
    if tail is not None:
        assert list(log_lines.merged(logs, tail)) == whole[-tail:]


@given(st.lists(times, min_size=1, max_size=12).map(sorted), st.data())
def test_a_log_that_is_read_in_pieces_is_read_once(stream: list[Time], data: st.DataObject) -> None:
    log, position, read = lines_of(stream, 0), log_lines.Position(), list[log_lines.LogLine]()
    while len(read) < len(log):
        # The API server begins anew at the second of the last line; then the connection breaks.
        since = position.time.replace(microsecond=0)
        again = [line for line in log if line.time >= since]
        count = data.draw(st.integers(1, len(log)))
        for line in position.rest(again):
            read.append(line)
            count -= 1
            if not count:
                break
    assert read == log


def test_a_position_in_time_leaves_out_what_is_older() -> None:
    log = lines_of([START, START + microseconds(2)], 0)
    later = log_lines.Position(START + microseconds(1))
    assert later.since == "2026-01-02T03:04:05Z"
    assert list(later.rest(log)) == log[1:]
    assert log_lines.Position().since == "1970-01-01T00:00:00Z"


def test_lines_that_come_late_find_their_place() -> None:
    buffer = log_lines.ReorderBuffer(1.0)
    early, late = (
        log_lines.LogLine(START, "a", "early"),
        log_lines.LogLine(START + microseconds(1), "b", "late"),
    )
    buffer.put(late, now=0.0)
    assert list(buffer.take(0.9)) == []
    buffer.put(early, now=0.5)
    assert list(buffer.take(1.4)) == []
    assert list(buffer.take(1.5)) == [early, late]
    buffer.put(late, now=2.0)
    assert list(buffer.take(math.inf)) == [late]


@given(streams)
def test_held_lines_keep_the_order_of_their_pod(given_streams: list[list[Time]]) -> None:
    buffer, out = log_lines.ReorderBuffer(1.0), list[log_lines.LogLine]()
    logs = [lines_of(stream, pod) for pod, stream in enumerate(given_streams)]
    for moment, log in enumerate(logs):
        for line in log:
            buffer.put(line, now=moment)
        out += buffer.take(moment)
    out += buffer.take(math.inf)
    for pod, log in enumerate(logs):
        assert [line for line in out if line.pod == f"pod-{pod}"] == log


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("45s", 45), ("5m", 300), ("1h30m", 5_400), ("2d", 172_800), ("1h 5m", 3_900), ("0s", 0)],
)
def test_durations(text: str, seconds: int) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "5x", "m5", "-5m", "1.5h"])
def test_no_durations(text: str) -> None:
    assert seconds_of(text) is None
