"""Numbers as people read them, and a run as a picture."""

import importlib.util
import json
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppojob_cli.figures import ASCII_BLOCKS, BLOCKS, duration, number, sparkline

ROOT = Path(__file__).resolve().parents[3]
SVG = "{http://www.w3.org/2000/svg}"


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


@pytest.fixture(scope="module")
def draw_run() -> ModuleType:
    spec = importlib.util.spec_from_file_location("draw_run", ROOT / "docs/pictures/draw_run.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["draw_run"] = module
    spec.loader.exec_module(module)
    return module


def run_lines(steps: int) -> list[dict[str, float | None]]:
    first = {"step": 0, "val-core/s/acc/mean@1": 0.25}
    lines = [
        {"step": step, "critic/score/mean": step / steps, "response_length/mean": 20.0 + step}
        for step in range(1, steps + 1)
    ]
    lines[-1]["val-core/s/acc/mean@1"] = 0.75
    return json.loads(json.dumps([first, *lines]))


def test_the_picture_of_a_run(draw_run: ModuleType) -> None:
    picture = ElementTree.fromstring(draw_run.draw(run_lines(20), "a <run> & more"))
    curves = {line.get("class"): line.get("points") for line in picture.iter(f"{SVG}polyline")}
    assert len(curves["reward"].split()) == 20
    assert len(curves["under"].split()) == 20
    first, last = (tuple(map(float, at.split(","))) for at in curves["accuracy"].split())
    assert first[0] == draw_run.LEFT
    assert last[0] == draw_run.WIDTH - draw_run.RIGHT
    top, height = draw_run.UPPER
    assert first[1] == pytest.approx(top + 0.75 * height, abs=0.1)
    texts = [text.text for text in picture.iter(f"{SVG}text")]
    assert {"a <run> & more", "0.25", "0.75", "20", "step"} <= set(texts)


@pytest.mark.parametrize(
    "lines",
    [[], [{"step": 0}], run_lines(1), [{"step": 1, "critic/score/mean": None}], run_lines(3)[:1]],
)
def test_a_picture_of_little(draw_run: ModuleType, lines: list[dict[str, float | None]]) -> None:
    ElementTree.fromstring(draw_run.draw(lines, "title"))
