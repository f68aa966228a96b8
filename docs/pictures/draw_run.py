"""Draw a run as an SVG: `draw_run.py runs/addition-grpo/metrics.jsonl > addition-grpo.svg`.

Reward and validation accuracy over the steps; below, how much a critic explains, or without one
the response length. Nothing but the standard library. The colours are legible on a light and on a
dark page, and follow the reader's.
"""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

WIDTH: Final = 720
LEFT, RIGHT = 56, 24
UPPER: Final = (72, 222)
"""Top and height of the upper panel."""
LOWER: Final = (352, 84)
HEIGHT: Final = 484
BELOW: Final = {
    "critic/vf_explained_var": "share of the variance of returns that the critic explains",
    "response_length/mean": "mean response length, tokens",
}
"""Metric -> what it is called; the first that a run has is drawn below."""

STYLE: Final = """
text { font: 13px system-ui, sans-serif; fill: #57606a }
.title { font-size: 16px; font-weight: 600; fill: #24292f }
.grid { stroke: #8c959f; stroke-opacity: 0.3; stroke-width: 1 }
.reward, .under { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round }
.reward { stroke: #2f81f7 }
.under { stroke: #8250df }
.accuracy { fill: none; stroke: #1a7f37; stroke-width: 2.5; stroke-linejoin: round }
.dot { fill: #1a7f37 }
.name-reward { fill: #2f81f7; font-weight: 600 }
.name-accuracy, .value { fill: #1a7f37; font-weight: 600 }
.name-under { fill: #8250df; font-weight: 600 }
@media (prefers-color-scheme: dark) {
  text { fill: #9198a1 }
  .title { fill: #f0f6fc }
  .accuracy { stroke: #3fb950 }
  .dot { fill: #3fb950 }
  .name-accuracy, .value { fill: #3fb950 }
  .under { stroke: #bc8cff }
  .name-under { fill: #bc8cff }
}
"""


@dataclass(frozen=True, slots=True)
class Curve:
    """A number over the steps.

    Attributes:
        points: Pairs of step and value.
    """

    points: Sequence[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Panel:
    """Where numbers are drawn.

    Attributes:
        top: Of its area, from the top of the picture.
        height: Of its area.
        low: Value at its lower edge.
        high: Value at its upper edge.
        last_step: Step at its right edge; its left edge is step 0.
        left: Of its area, from the left of the picture.
        width: Of its area.
    """

    top: float
    height: float
    low: float
    high: float
    last_step: int
    left: float = LEFT
    width: float = WIDTH - LEFT - RIGHT

    def x(self, step: float) -> float:
        """Place of a step."""
        return self.left + self.width * step / max(1, self.last_step)

    def y(self, value: float) -> float:
        """Place of a value."""
        return self.top + self.height * (1 - (value - self.low) / (self.high - self.low))

    def line(self, curve: Curve, style: str) -> str:
        """A curve as a path."""
        places = [f"{self.x(step):.1f},{self.y(value):.1f}" for step, value in curve.points]
        return f'<polyline class="{style}" points="{" ".join(places)}"/>'

    def axis(self, ticks: Sequence[float]) -> list[str]:
        """Horizontal lines with their values."""
        parts = []
        for tick in ticks:
            y = self.y(tick)
            parts.append(
                f'<line class="grid" x1="{self.left}" x2="{self.left + self.width}" '
                f'y1="{y:.1f}" y2="{y:.1f}"/>'
                f'<text x="{self.left - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>'
            )
        return parts

    def steps_axis(self, count: int = 8) -> list[str]:
        """Numbers of steps below the panel, about `count` of them."""
        y = self.top + self.height + 18
        return [
            f'<text x="{self.x(step):.1f}" y="{y}" text-anchor="middle">{step:g}</text>'
            for step in ticks_between(0, self.last_step, count)
            if float(step).is_integer()
        ]


def ticks_between(low: float, high: float, count: int) -> list[float]:
    """Round numbers between two values, about `count` of them."""
    rough = (high - low) / max(1, count)
    if rough <= 0:
        return [low]
    power = 10.0 ** math.floor(math.log10(rough))
    unit = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    first, last = math.ceil(low / unit - 1e-9), math.floor(high / unit + 1e-9)
    return [round(unit * index, 10) for index in range(first, last + 1)]


def read_curve(lines: Sequence[dict[str, float | None]], name: str) -> Curve:
    """A metric by its name, where it is there and finite."""
    found = [(line.get("step"), line.get(name)) for line in lines]
    return Curve(
        [(int(step), value) for step, value in found if step is not None and value is not None]
    )


def accuracy_name(lines: Sequence[dict[str, float | None]]) -> str | None:
    """The first validation accuracy of the run."""
    names = {name for line in lines for name in line if name.startswith("val-core/")}
    return min((name for name in names if name.endswith("/acc/mean@1")), default=None)


def draw(lines: Sequence[dict[str, float | None]], title: str) -> str:
    """The picture of a run.

    Args:
        lines: The lines of its `metrics.jsonl`.
        title: Above the picture.
    """
    reward = read_curve(lines, "critic/score/mean")
    below = next((one for one in BELOW if read_curve(lines, one).points), "response_length/mean")
    under = read_curve(lines, below)
    name = accuracy_name(lines)
    accuracy = Curve([]) if name is None else read_curve(lines, name)
    values = [value for curve in (reward, accuracy) for _, value in curve.points]
    last_step = max((step for curve in (reward, accuracy) for step, _ in curve.points), default=1)
    upper = Panel(*UPPER, min([0.0, *values]), max([1.0, *values]), last_step)
    sizes = [value for _, value in under.points] or [1.0]
    lower = Panel(*LOWER, min(0.0, *sizes), max(sizes) * 1.15, last_step)
    right = WIDTH - RIGHT
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            f'width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="{escape(title)}">',
            f"<style>{STYLE}</style>",
            f'<text class="title" x="{LEFT}" y="26">{escape(title)}</text>',
            f'<text class="name-reward" x="{LEFT}" y="48">mean reward of the samples</text>',
            f'<text class="name-accuracy" x="{right}" y="48" text-anchor="end">'
            "held-out accuracy, greedy</text>",
            *upper.axis(ticks_between(upper.low, upper.high, 5)),
            upper.line(reward, "reward"),
            *accuracy_with_values(upper, accuracy),
            f'<text class="name-under" x="{LEFT}" y="{LOWER[0] - 14}">'
            f"{escape(BELOW[below])}</text>",
            *lower.axis(ticks_between(lower.low, lower.high, 3)),
            lower.line(under, "under"),
            *lower.steps_axis(),
            f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 8}" text-anchor="middle">step</text>',
            "</svg>",
            "",
        ]
    )


def accuracy_with_values(panel: Panel, curve: Curve) -> list[str]:
    """The accuracy with its values: it has few points, and they are what counts."""
    parts = [panel.line(curve, "accuracy")] if curve.points else []
    for step, value in curve.points:
        x, y = panel.x(step), panel.y(value)
        anchor = "start" if step == 0 else "end" if step == panel.last_step else "middle"
        parts.append(
            f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>'
            f'<text class="value" x="{x:.1f}" y="{y - 12:.1f}" text-anchor="{anchor}">{value:.2f}'
            "</text>"
        )
    return parts


def main() -> None:
    """Read a metrics file, write the picture to standard output."""
    parser = argparse.ArgumentParser(description="Draw a run's metrics.jsonl as an SVG.")
    parser.add_argument("metrics", type=Path)
    parser.add_argument("--title", default="GRPO: SmolLM2-135M learns the sum of three digits")
    arguments = parser.parse_args()
    lines = [json.loads(line) for line in arguments.metrics.read_text("utf-8").splitlines()]
    sys.stdout.write(draw(lines, arguments.title))


if __name__ == "__main__":
    main()
