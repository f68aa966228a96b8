import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppojob_cli.figures import ASCII_BLOCKS, BLOCKS, duration, number, sparkline


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.000"),
        (0.36, "0.360"),
        (-1.5, "-1.500"),
        (12.34, "12.3"),
        (999.96, "1000.0"),
        (1_234.5, "1,234"),
        (2e-5, "2.0e-05"),
    ],
)
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3.0, "0 ms"),
        (0.0004, "0 ms"),
        (0.083, "83 ms"),
        (0.0996, "0.1 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (3_599.4, "59 min 59 s"),
        (3_599.6, "1 h 00 min"),
        (90_000.0, "25 h 00 min"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_sparklines() -> None:
    assert sparkline([0.0, 1.0], 10, ASCII_BLOCKS) == "_#"
    assert sparkline([2.0, 2.0, 2.0], 10) == BLOCKS[4] * 3
    assert sparkline([0, 0, 4, 4, 8, 8], 3) == BLOCKS[0] + BLOCKS[4] + BLOCKS[7]
    assert sparkline([], 10) == ""
    assert sparkline([1.0], 0) == ""


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=300), st.integers(1, 80))
def test_a_sparkline_fits_and_shows_the_range(values: list[float], width: int) -> None:
    line = sparkline(values, width)
    assert len(line) == min(len(values), width)
    assert set(line) <= set(BLOCKS)
