"""A moment of a run as one table: a pure function of the state, the time and the width."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ppojob_api.problem import printable
from ppojob_cli import run_state
from ppojob_cli.figures import ASCII_BLOCKS, BLOCKS, duration, number, sparkline
from ppojob_cli.run_state import PodState, RunState

MAX_WIDTH: Final = 100
MIN_WIDTH: Final = 40

_CURVES: Final = (
    ("reward", run_state.REWARD),
    ("length", run_state.RESPONSE_LENGTH),
    ("entropy", run_state.ENTROPY),
    ("grad norm", run_state.GRADIENT_NORM),
    ("tokens/s", run_state.TOKENS_PER_SECOND),
)
_COLOURS: Final = {
    "Starting": "yellow",
    "Training": "cyan",
    "Recovering": "yellow",
    "Finishing": "cyan",
    "Succeeded": "green",
    "Failed": "red",
    "Interrupted": "yellow",
}
_LABEL_WIDTH: Final = 10
_VALUE_WIDTH: Final = 8
_BORDER_WIDTH: Final = 4
_ROOMY: Final = 50
_VALIDATIONS_SHOWN: Final = 6
_MESSAGE_CHARACTERS: Final = 300
_SMALLEST_SHARE: Final = 0.005


@dataclass(frozen=True, slots=True)
class Canvas:
    """What can be drawn on.

    Attributes:
        width: Columns of the terminal.
        ascii_only: Whether it shows ASCII alone.
    """

    width: int
    ascii_only: bool = False

    @property
    def inner_width(self) -> int:
        """Columns inside the border."""
        return self.panel_width - _BORDER_WIDTH

    @property
    def panel_width(self) -> int:
        """Columns with the border; short lines are easier to read than a wide terminal."""
        return max(MIN_WIDTH, min(self.width, MAX_WIDTH))

    @property
    def blocks(self) -> Sequence[str]:
        """Characters of a sparkline."""
        return ASCII_BLOCKS if self.ascii_only else BLOCKS


def frame(
    name: str, state: RunState, pods: Sequence[PodState], *, now: float, canvas: Canvas
) -> RenderableType:
    """Everything about a run that moves.

    Args:
        name: Of the job.
        state: The run.
        pods: Its pods, while they are waited for.
        now: Unix seconds.
        canvas: What is drawn on.
    """
    colour = _COLOURS.get(state.phase, "white")
    sections: list[RenderableType | None] = [
        _progress(state, now, canvas),
        _now_line(state, now),
        _message_line(state),
        _pods_line(pods),
        _curves(state, canvas),
        _stages_line(state),
        _validations(state, canvas),
    ]
    return Panel(
        Group(*(section for section in sections if section is not None)),
        title=Text(f" {printable(name)}: {state.phase} ", style=f"bold {colour}"),
        title_align="left",
        border_style=colour,
        box=box.ASCII if canvas.ascii_only else box.ROUNDED,
        width=canvas.panel_width,
    )


def _progress(state: RunState, now: float, canvas: Canvas) -> RenderableType:
    total, done = state.total_steps, state.done_steps
    line = Table.grid(padding=(0, 2, 0, 0), expand=True)
    line.add_column(no_wrap=True)
    line.add_column(ratio=1)
    line.add_column(no_wrap=True, justify="right")
    remaining = state.remaining_seconds(now)
    left = f"{duration(remaining)} left" if remaining is not None else ""
    share = f"{100 * done // total} %" if total else ""
    bar = ProgressBar(total=max(total, 1), completed=done) if total else Text("")
    steps = Text(f"step {done} of {total}" if total else f"step {done}", style="bold")
    line.add_row(steps, bar, Text("  ".join(part for part in (share, left) if part)))
    return line


def _now_line(state: RunState, now: float) -> RenderableType | None:
    status = state.status
    if status is None:
        return _labelled("now", Text("starting pods"))
    text = Text()
    if state.is_waiting:
        text.append(f"waiting for pods, {duration(now - status.since)}")
    elif status.stage:
        step = f"step {status.step}: " if status.step and state.phase == "Training" else ""
        text.append(f"{step}{printable(status.stage)}, {duration(now - status.since)}")
    if status.restarts:
        text.append(f"{'  ' if text else ''}restarts: {status.restarts}", style="yellow")
    return _labelled("now", text) if text else None


def _message_line(state: RunState) -> RenderableType | None:
    message = state.status.message if state.status else ""
    if not message:
        return None
    short = printable(message.splitlines()[0])[:_MESSAGE_CHARACTERS]
    return _labelled("message", Text(short, style="yellow"))


def _pods_line(pods: Sequence[PodState]) -> RenderableType | None:
    if not pods:
        return None
    lines = Table.grid(padding=(0, 2, 0, 0))
    lines.add_column()
    lines.add_column(no_wrap=True)
    for pod in pods:
        style = {"ready": "green", "lost": "red", "not up": "dim"}.get(pod.phase, "yellow")
        lines.add_row(Text(printable(pod.name)), Text(printable(pod.phase), style=style))
    return _labelled("pods", lines)


def _curves(state: RunState, canvas: Canvas) -> RenderableType | None:
    width = canvas.inner_width - _LABEL_WIDTH - _VALUE_WIDTH - 3
    rows = [(label, values) for label, key in _CURVES if (values := state.series(key))]
    if not rows:
        return None
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(width=_LABEL_WIDTH, style="dim")
    table.add_column(width=_VALUE_WIDTH, justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    for label, values in rows:
        style = "bold green" if label == "reward" else ""
        curve = Text(sparkline(values, width, canvas.blocks), style="green" if style else "blue")
        table.add_row(label, Text(number(values[-1]), style=style), curve)
    return table


def _stages_line(state: RunState) -> RenderableType | None:
    if not state.steps:
        return None
    last = state.steps[-1]
    whole = last.values.get(run_state.STEP_SECONDS, 0.0)
    shown = [
        f"{printable(stage)} {duration(seconds)}"
        for stage, seconds in last.stage_seconds
        if seconds >= _SMALLEST_SHARE * whole
    ]
    text = Text(duration(whole), style="bold")
    text.append(f" = {' + '.join(shown)}" if shown else "", style="not bold")
    return _labelled("last step", text)


def _validations(state: RunState, canvas: Canvas) -> RenderableType | None:
    series = list(state.validation_series().items())
    if not series:
        return None
    width = (canvas.inner_width - _LABEL_WIDTH) // 4 if canvas.inner_width >= _ROOMY else 0
    shown = series[:_VALIDATIONS_SHOWN]
    name_width = max(len(printable(name)) for name, _ in shown)
    lines = [_validation(name, values, name_width, width, canvas) for name, values in shown]
    if len(series) > len(shown):
        lines.append(Text(f"and {len(series) - len(shown)} more", style="dim"))
    return _labelled("validation", Text("\n").join(lines))


def _validation(
    name: str, values: Sequence[float], name_width: int, width: int, canvas: Canvas
) -> Text:
    text = Text(f"{printable(name):<{name_width}}  ")
    text.append(number(values[0]), style="bold green")
    if len(values) > 1:
        text.append(f" -> {number(values[-1])}", style="bold green")
        text.append(f"  {sparkline(values, width, canvas.blocks)}", style="green")
    return text


def _labelled(label: str, content: RenderableType) -> RenderableType:
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(width=_LABEL_WIDTH, style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(label, content)
    return table
