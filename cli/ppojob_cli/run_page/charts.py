"""Charts of the run page: downsampled curves in pixels, with round ticks."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ppojob_cli.run_page.facts import PageRun
from ppojob_cli.run_state import StepRecord
from ppojob_trainer.metrics.names import Metric, find

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


@dataclass(frozen=True, slots=True)
class Charts:
    """All charts of a page."""

    headlines: Sequence[Chart]
    stages: Sequence[Chart]
    # Other metrics, grouped by the part of their names before the first slash.
    others: Sequence[tuple[str, Sequence[Chart]]]
    left_out: int  # number of metrics without a chart


def draw_charts(runs: Sequence[PageRun]) -> Charts:
    """Draw the metrics of runs."""
    names = sorted({name for run in runs for record in run.state.records for name in record.values})
    titles = {name: title for title, name in _headlines(names)}
    others = [name for name in names if name not in titles]
    drawn = others[: min(_MOST_CHARTS, _MOST_CURVES // len(runs))]
    first, last = _span(runs)
    steps = axis([first, max(last, first + 1)], LEFT, RIGHT, whole=True)
    head = _points_each(_HEADLINE_POINTS, len(titles) * len(runs))
    rest = _points_each(_OTHER_POINTS, len(drawn) * len(runs))
    groups = itertools.groupby(drawn, key=lambda name: name.partition("/")[0])
    return Charts(
        headlines=[_chart(title, name, runs, steps, head) for name, title in titles.items()],
        stages=[
            _stage_chart(index, runs, steps) for index, run in enumerate(runs) if run.state.steps
        ],
        others=[
            (group, [_chart(name, name, runs, steps, rest) for name in own])
            for group, own in groups
        ],
        left_out=len(others) - len(drawn),
    )


def _headlines(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    rows = [(find(name), name) for name in names]
    for title, wanted in HEADLINES:
        own = [name for row, name in rows if row is not None and row.name == wanted]
        yield from ((title, name) for name in own[:_MOST_OF_A_TITLE])


def _span(runs: Sequence[PageRun]) -> tuple[int, int]:
    steps = [record.step for run in runs for record in run.state.records] or [0]
    return min(steps), max(steps)


def _points_each(budget: int, curves: int) -> int:
    return max(2, min(_MOST_OF_A_CURVE, budget // max(1, curves)))


def thinned(points: Sequence[Point], limit: int) -> list[Point]:
    """Downsample to at most `limit` + 1 points: the extremes of neighbours, to keep every peak.

    The last point stays.
    """
    if len(points) <= limit:
        return list(points)
    parts = max(1, limit // 2)
    kept: list[Point] = []
    for part in range(parts):
        own = points[part * len(points) // parts : (part + 1) * len(points) // parts]
        extremes = {
            min(own, key=lambda point: point[1]),
            max(own, key=lambda point: point[1]),
        }
        kept += sorted(extremes)
    return kept if kept[-1] == points[-1] else [*kept, points[-1]]


def _chart(title: str, name: str, runs: Sequence[PageRun], steps: Axis, limit: int) -> Chart:
    series = [_points(run.state.records, name) for run in runs]
    values = axis([value for points in series for _, value in points], BOTTOM, TOP)
    row = find(name)
    return Chart(
        title=title,
        name=name,
        meaning="" if row is None else _meaning(row),
        steps=steps,
        values=values,
        curves=[
            _curve(run.label, index, thinned(points, limit), steps, values)
            for index, (run, points) in enumerate(zip(runs, series, strict=True))
            if points
        ],
        marks=[] if title == name else _marks(runs, steps),
    )


def _meaning(row: Metric) -> str:
    return row.meaning if row.unit in {"-", "1"} else f"{row.meaning}, in {row.unit}"


def _points(records: Sequence[StepRecord], name: str) -> list[Point]:
    return [(record.step, record.values[name]) for record in records if name in record.values]


def _curve(label: str, style: int, points: Sequence[Point], steps: Axis, values: Axis) -> Curve:
    places = [(steps.place(step), values.place(value)) for step, value in points]
    return Curve(label, style, _path(places), _data(points), places[-1])


def _path(places: Sequence[tuple[int, int]]) -> str:
    return " ".join(f"{x},{y}" for x, y in places)


def _data(points: Sequence[Point]) -> str:
    return " ".join(f"{step} {value:.4g}" for step, value in points)


def _marks(runs: Sequence[PageRun], steps: Axis) -> list[tuple[int, str]]:
    places = [sorted({steps.place(mark.step) for mark in run.marks}) for run in runs]
    return [
        (index, "".join(f"M{place} {TOP}V{BOTTOM}" for place in own))
        for index, own in enumerate(places)
        if own
    ]


def _stage_chart(index: int, runs: Sequence[PageRun], steps: Axis) -> Chart:
    """Draw the seconds of each stage as stacked areas; neighbouring steps are averaged."""
    records = runs[index].state.steps
    parts = min(_STAGE_BINS, len(records))
    bins = [
        records[part * len(records) // parts : (part + 1) * len(records) // parts]
        for part in range(parts)
    ]
    totals: dict[str, float] = {}
    for record in records:
        for stage, seconds in record.stage_seconds:
            totals[stage] = totals.get(stage, 0.0) + seconds
    order = sorted(totals, key=lambda stage: -totals[stage])
    layers = [(stage, [stage]) for stage in order[:_STAGES]]
    if order[_STAGES:]:
        layers.append(("others", order[_STAGES:]))
    at = [own[-1].step for own in bins]
    heights = [[_mean_seconds(own, stages) for own in bins] for _, stages in layers]
    tops = list(itertools.accumulate(heights, _sum_of))
    values = axis([0.0, *(tops[-1] if tops else [])], BOTTOM, TOP)
    floors = [[0.0] * parts, *tops]
    curves = [
        _area(stage, style, list(zip(at, own, strict=True)), floor, top, steps, values)
        for style, ((stage, _), own, floor, top) in enumerate(
            zip(layers, heights, floors, tops, strict=False)
        )
    ]
    of = f": {runs[index].label}" if len(runs) > 1 else ""
    meaning = "seconds of each stage, the largest at the bottom"
    name = "timing_s/<stage>"
    return Chart(f"Time by stage{of}", name, meaning, steps, values, curves, [], index)


def _mean_seconds(records: Sequence[StepRecord], stages: Sequence[str]) -> float:
    seconds = (
        record.values.get(f"timing_s/{stage}", 0.0) for record in records for stage in stages
    )
    return sum(seconds) / len(records)


def _sum_of(below: Sequence[float], above: Sequence[float]) -> list[float]:
    return [one + other for one, other in zip(below, above, strict=True)]


def _area(
    label: str,
    style: int,
    points: Sequence[Point],
    floor: Sequence[float],
    top: Sequence[float],
    steps: Axis,
    values: Axis,
) -> Curve:
    upper = [(steps.place(s), values.place(y)) for (s, _), y in zip(points, top, strict=True)]
    lower = [(steps.place(s), values.place(y)) for (s, _), y in zip(points, floor, strict=True)]
    if len(upper) == 1:  # one step: a column instead of an area
        upper, lower = [(LEFT, upper[0][1]), upper[0]], [(LEFT, lower[0][1]), lower[0]]
    return Curve(label, style, _path([*upper, *reversed(lower)]), _data(points), upper[-1])


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
