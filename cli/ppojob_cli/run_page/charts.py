"""Charts of the run page: downsampled curves in pixels, with round ticks."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ppojob_cli.figures import parts_of
from ppojob_cli.run_page.facts import PageRun
from ppojob_trainer.metrics.names import find

WIDTH: Final = 840
HEIGHT: Final = 340
LEFT: Final = 96
RIGHT: Final = 824
TOP: Final = 14
BOTTOM: Final = 300

HEADLINES: Final = (
    ("Reward", "critic/score/mean"),
    ("Loss", "train/loss"),
    ("Validation", "val-core/<data source>/acc/mean@<n>"),
    ("Validation loss", "val/loss"),
    ("Pairs the right way round", "train/rewards/accuracies"),
    ("Held-out pairs the right way round", "val/rewards/accuracies"),
    ("Pairs the right way round", "actor/rewards/accuracies"),
    ("Margin of pairs", "train/rewards/margins"),
    ("Margin of pairs", "actor/rewards/margins"),
    ("Reward of chosen or good answers", "train/rewards/chosen"),
    ("Reward of rejected or bad answers", "train/rewards/rejected"),
    ("KL that answers are compared with", "train/kl"),
    ("Loss of the process reward model", "reward_model/dpo_loss"),
    ("Process rewards of the right sign", "reward_model/dpo_acc_abs"),
    ("Divergence from the teacher", "distillation/loss"),
    ("KL in the loss", "actor/kl_loss"),
    ("KL off the reward", "actor/reward_kl_penalty"),
    ("KL of the updates", "actor/ppo_kl"),
    ("Entropy", "actor/entropy"),
    ("Gradient norm", "actor/grad_norm"),
    ("Gradient norm", "train/grad_norm"),
    ("Response length", "response_length/mean"),
    ("Throughput", "perf/throughput"),
    ("Time of a step", "timing_s/step"),
)
"""Titles of the first charts, by row of docs/metrics.md."""

_MOST_OF_A_TITLE: Final = 8
_HEADLINE_POINTS: Final = 18_000
_OTHER_POINTS: Final = 18_000
_MOST_OF_A_CURVE: Final = 400
_MOST_CHARTS: Final = 300
_MOST_CURVES: Final = 1_200
_LARGEST: Final = 1e300
_SMALLEST: Final = 1e-290
_ALIKE: Final = 1e-6
_STAGES: Final = 7
_STAGE_BINS: Final = 80
_TICKS: Final = 4

Point = tuple[int, float]  # step and value
Place = tuple[int, int]  # coordinates of a point


@dataclass(frozen=True, slots=True)
class Axis:
    """Maps values from `low` to `high` to coordinates; ticks are pairs of coordinate and text."""

    low: float
    high: float
    place: Callable[[float], int]
    ticks: Sequence[tuple[int, str]]


@dataclass(frozen=True, slots=True)
class Curve:
    """A line, or an area."""

    label: str
    style: int  # number of its colour
    path: str  # `points` of an SVG polyline or polygon
    data: str  # `step value` pairs for tooltips, in the order of the path
    last: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of one metric over the steps, with a curve per run."""

    title: str
    name: str
    meaning: str  # of the metric
    steps: Axis
    values: Axis
    curves: Sequence[Curve]
    marks: Sequence[tuple[int, str]]  # number of a run, and a path with a line at each of its marks
    run: int | None = None  # number of the run whose stages are drawn as areas; None for curves


def draw_charts(runs: Sequence[PageRun]) -> dict[str, Any]:
    """Draw the metrics of runs; `left_out` is the number of those without a chart."""
    records = [record for run in runs for record in run.state.records]
    names = sorted({name for record in records for name in record.values})
    titles = dict(_headlines(names))
    others = [name for name in names if name not in titles]
    drawn = others[: min(_MOST_CHARTS, _MOST_CURVES // len(runs))]
    reached = {record.step for record in records} or {0}
    steps = axis([min(reached), max(*reached, min(reached) + 1)], LEFT, RIGHT, whole=True)
    head, rest = (
        max(2, min(_MOST_OF_A_CURVE, points // max(1, len(metrics) * len(runs))))
        for points, metrics in ((_HEADLINE_POINTS, titles), (_OTHER_POINTS, drawn))
    )
    groups = itertools.groupby(drawn, key=lambda name: name.partition("/")[0])
    indices = [index for index, run in enumerate(runs) if run.state.steps]
    return {
        "headlines": [_chart(title, name, runs, steps, head) for name, title in titles.items()],
        "stages": [_stage_chart(index, runs, steps) for index in indices],
        "others": [
            (group, [_chart(name, name, runs, steps, rest) for name in own])
            for group, own in groups
        ],
        "left_out": len(others) - len(drawn),
    }


def _headlines(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the metrics of the first charts, with their titles."""
    rows = [(row.name, name) for name in names if (row := find(name)) is not None]
    for title, wanted in HEADLINES:
        own = [name for row, name in rows if row == wanted]
        yield from ((name, title) for name in own[:_MOST_OF_A_TITLE])


def thinned(points: Sequence[Point], limit: int) -> list[Point]:
    """Downsample to at most `limit` + 1 points: the extremes of neighbours, to keep every peak.

    The last point stays.
    """
    if len(points) <= limit:
        return list(points)
    kept: list[Point] = []
    for own in parts_of(points, max(1, limit // 2)):
        kept += sorted({f(own, key=lambda point: point[1]) for f in (min, max)})
    return kept if kept[-1] == points[-1] else [*kept, points[-1]]


def _chart(title: str, name: str, runs: Sequence[PageRun], steps: Axis, limit: int) -> Chart:
    series = [
        [(one.step, one.values[name]) for one in run.state.records if name in one.values]
        for run in runs
    ]
    values = axis([value for points in series for _, value in points], BOTTOM, TOP)
    curves = []
    for index, (run, whole) in enumerate(zip(runs, series, strict=True)):
        if points := thinned(whole, limit):
            line = [(steps.place(step), values.place(value)) for step, value in points]
            curves.append(_curve(run.label, index, points, line))
    marks = [
        (index, "".join(f"M{one} {TOP}V{BOTTOM}" for one in places))
        for index, run in enumerate(runs)
        if title != name and (places := sorted({steps.place(mark.step) for mark in run.marks}))
    ]
    row = find(name)
    unit = "" if row is None or row.unit in {"-", "1"} else f", in {row.unit}"
    meaning = "" if row is None else f"{row.meaning}{unit}"
    return Chart(title, name, meaning, steps, values, curves, marks)


def _curve(
    label: str,
    style: int,
    points: Sequence[Point],
    line: Sequence[Place],
    floor: Sequence[Place] = (),
) -> Curve:
    """Make a line, or with a floor the area between both."""
    path = " ".join(f"{x},{y}" for x, y in (*line, *reversed(floor)))
    data = " ".join(f"{step} {value:.4g}" for step, value in points)
    return Curve(label, style, path, data, line[-1])


def _stage_chart(index: int, runs: Sequence[PageRun], steps: Axis) -> Chart:
    """Draw the seconds of each stage as stacked areas; neighbouring steps are averaged."""
    records = runs[index].state.steps
    bins = parts_of(records, _STAGE_BINS)
    totals = Counter[str]()
    for record in records:
        totals.update(dict(record.stage_seconds))
    order = [stage for stage, _ in totals.most_common()]
    layers = {stage: [f"timing_s/{stage}"] for stage in order[:_STAGES]}
    if order[_STAGES:]:
        layers["others"] = [f"timing_s/{stage}" for stage in order[_STAGES:]]
    heights = [
        [sum(one.values.get(name, 0.0) for one in own for name in names) / len(own) for own in bins]
        for names in layers.values()
    ]
    tops = [[0.0] * len(bins)]
    for own in heights:
        tops.append([below + height for below, height in zip(tops[-1], own, strict=True)])
    values, curves = axis([0.0, *tops[-1]], BOTTOM, TOP), []
    lines = [
        [(steps.place(own[-1].step), values.place(top)) for own, top in zip(bins, one, strict=True)]
        for one in tops
    ]
    if len(bins) == 1:  # one step: a column instead of an area
        lines = [[(LEFT, line[0][1]), *line] for line in lines]
    for style, stage in enumerate(layers):
        points = [(own[-1].step, height) for own, height in zip(bins, heights[style], strict=True)]
        curves.append(_curve(stage, style, points, lines[style + 1], lines[style]))
    of = f": {runs[index].label}" if len(runs) > 1 else ""
    meaning = "seconds of each stage, the largest at the bottom"
    name = "timing_s/<stage>"
    return Chart(f"Time by stage{of}", name, meaning, steps, values, curves, [], index)


def axis(values: Sequence[float], low_end: int, high_end: int, *, whole: bool = False) -> Axis:
    """Make an axis for values of any magnitude; ticks are round numbers."""
    within = [min(max(value, -_LARGEST), _LARGEST) for value in values] or [0.0]
    low, high = min(within), max(within)
    size = max(abs(low), abs(high))
    if high - low <= max(size * _ALIKE, _SMALLEST):
        spread = size * 0.1 if size > _SMALLEST else 1.0
        low, high = low - spread, high + spread
    stride = _stride((high - low) / _TICKS)
    stride = max(1.0, stride) if whole else stride
    if not whole:
        low, high = math.floor(low / stride) * stride, math.ceil(high / stride) * stride
    scale = (high_end - low_end) / (high - low)

    def place(value: float) -> int:
        return round(low_end + (min(max(value, low), high) - low) * scale)

    first, last = math.ceil(low / stride - 1e-9), math.floor(high / stride + 1e-9)
    ticks = [number * stride for number in range(first, last + 1)]
    return Axis(low, high, place, [(place(tick), f"{tick:,.8g}") for tick in ticks])


def _stride(rough: float) -> float:
    """Round up to 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
