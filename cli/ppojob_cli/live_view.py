"""The view for a terminal: one table that is drawn anew, and above it what stays."""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ppojob_api.problem import printable
from ppojob_cli import run_state
from ppojob_cli.figures import duration, number, sparkline
from ppojob_cli.panel import LABEL_WIDTH, Canvas, labelled, progress, titled
from ppojob_cli.run_state import PodState, RunState, StepRecord
from ppojob_cli.view import Kind, PodStates, View

_STYLES: Final[Mapping[Kind, str]] = {"note": "yellow", "error": "red", "sample": "dim"}
_VALUE_WIDTH: Final = 8
_ROOMY: Final = 50
_VALIDATIONS_SHOWN: Final = 6
_MESSAGE_CHARACTERS: Final = 300
_SMALLEST_SHARE: Final = 0.005


class LiveView(View):
    """Draws the run whenever it is refreshed; no thread of its own."""

    def __init__(self, name: str, folder: Path, console: Console, **options: Any) -> None:
        super().__init__(name, folder, **options)
        self._console = console
        self._pods: tuple[PodState, ...] = ()
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")

    def __enter__(self) -> Self:
        """See `View`."""
        with contextlib.suppress(OSError):
            self._live.start()
        self._draw()
        return self

    def close(self) -> None:
        """Draw the last moment, and give the cursor back."""
        super().close()
        self._draw()
        with contextlib.suppress(OSError):
            self._live.stop()

    def refresh(self, pod_states: PodStates) -> None:
        """See `View`."""
        self.look()
        self.show_new()
        self._pods = tuple(pod_states()) if self.state.is_waiting else ()
        self._draw()

    def write(self, lines: Iterable[str], kind: Kind = "") -> None:
        """See `View`."""
        # A terminal that was closed takes the view with it, never the run.
        with contextlib.suppress(OSError):
            for line in lines:
                self._console.print(Text(line, style=_STYLES.get(kind, "")), soft_wrap=True)

    def show_record(self, record: StepRecord, *, again: bool) -> None:
        """The table shows it."""

    def _draw(self) -> None:
        canvas = Canvas.of(self._console)
        drawn = frame(self.name, self.state, self._pods, now=self.clock(), canvas=canvas)
        with contextlib.suppress(OSError):
            self._live.update(drawn, refresh=True)


def frame(
    name: str, state: RunState, pods: Sequence[PodState], *, now: float, canvas: Canvas
) -> RenderableType:
    """Everything about a run that moves, as one table; pure, `now` is in Unix seconds."""
    left = state.remaining_seconds(now)
    sections: list[RenderableType | None] = [
        progress(state.done_steps, state.total_steps, duration(left) if left is not None else ""),
        _now_line(state, now),
        _message_line(state),
        _pods_line(pods),
        _curves(state, canvas),
        _stages_line(state),
        _validations(state, canvas),
    ]
    present = [section for section in sections if section is not None]
    return titled(name, state.phase, present, canvas)


def _now_line(state: RunState, now: float) -> RenderableType | None:
    status = state.status
    if status is None:
        return labelled("now", Text("starting pods"))
    text = Text()
    if state.is_waiting:
        text.append(f"waiting for pods, {duration(now - status.since)}")
    elif status.stage:
        step = f"step {status.step}: " if status.step and state.phase == "Training" else ""
        text.append(f"{step}{printable(status.stage)}, {duration(now - status.since)}")
    if status.restarts:
        text.append(f"{'  ' if text else ''}restarts: {status.restarts}", style="yellow")
    return labelled("now", text) if text else None


def _message_line(state: RunState) -> RenderableType | None:
    message = state.status.message if state.status else ""
    if not message:
        return None
    short = printable(message.splitlines()[0])[:_MESSAGE_CHARACTERS]
    return labelled("message", Text(short, style="yellow"))


def _pods_line(pods: Sequence[PodState]) -> RenderableType | None:
    if not pods:
        return None
    lines = Table.grid(padding=(0, 2, 0, 0))
    lines.add_column()
    lines.add_column(no_wrap=True)
    for pod in pods:
        style = {"ready": "green", "lost": "red", "not up": "dim"}.get(pod.phase, "yellow")
        lines.add_row(Text(printable(pod.name)), Text(printable(pod.phase), style=style))
    return labelled("pods", lines)


def _curves(state: RunState, canvas: Canvas) -> RenderableType | None:
    width = canvas.inner_width - LABEL_WIDTH - _VALUE_WIDTH - 3
    series = state.figure_series()
    if not series:
        return None
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(width=LABEL_WIDTH, style="dim")
    table.add_column(width=_VALUE_WIDTH, justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    for label, values in series.items():
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
    return labelled("last step", text)


def _validations(state: RunState, canvas: Canvas) -> RenderableType | None:
    series = list(state.validation_series().items())
    if not series:
        return None
    width = (canvas.inner_width - LABEL_WIDTH) // 4 if canvas.inner_width >= _ROOMY else 0
    shown = series[:_VALIDATIONS_SHOWN]
    name_width = max(len(printable(name)) for name, _ in shown)
    lines = [_validation(name, values, name_width, width, canvas) for name, values in shown]
    if len(series) > len(shown):
        lines.append(Text(f"and {len(series) - len(shown)} more", style="dim"))
    return labelled("validation", Text("\n").join(lines))


def _validation(
    name: str, values: Sequence[float], name_width: int, width: int, canvas: Canvas
) -> Text:
    text = Text(f"{printable(name):<{name_width}}  ")
    text.append(number(values[0]), style="bold green")
    if len(values) > 1:
        text.append(f" -> {number(values[-1])}", style="bold green")
        text.append(f"  {sparkline(values, width, canvas.blocks)}", style="green")
    return text
