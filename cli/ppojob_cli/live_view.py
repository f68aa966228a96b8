"""Live view on a terminal: a table that is redrawn, with permanent lines above it."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ppojob_api.problem import printable
from ppojob_cli import run_state
from ppojob_cli.figures import ASCII_BLOCKS, BLOCKS, duration, number, sparkline
from ppojob_cli.panel import BORDER_WIDTH, LABEL_WIDTH, labelled, panel_width, progress, titled
from ppojob_cli.run_state import RunState
from ppojob_cli.view import Kind, View, rows_line

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
        self._pods: Mapping[str, str] = {}
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")

    def __enter__(self) -> Self:
        """See `View`."""
        with contextlib.suppress(OSError):
            self._live.start()
        self._draw()
        return self

    def close(self) -> None:
        """Draw the final state, and restore the cursor."""
        super().close()
        self._draw()
        with contextlib.suppress(OSError):
            self._live.stop()

    def _show(self, pods: Mapping[str, str]) -> None:
        self.show_new()
        self._pods = pods
        self._draw()

    def _print(self, line: str, kind: Kind) -> None:
        self._console.print(Text(line, style=_STYLES.get(kind, "")), soft_wrap=True)

    def _draw(self) -> None:
        drawn = frame(self.name, self.state, self._pods, self.clock(), self._console)
        with contextlib.suppress(OSError):
            self._live.update(drawn, refresh=True)


def frame(
    name: str, state: RunState, pods: Mapping[str, str], now: float, console: Console
) -> RenderableType:
    """Draw the changing state of a run as one table; `now` is in Unix seconds."""
    left = state.remaining_seconds(now)
    width = panel_width(console) - BORDER_WIDTH
    blocks = ASCII_BLOCKS if console.options.ascii_only else BLOCKS
    done, total = state.done_steps, state.status.total_steps
    sections = [
        progress(done, total, duration(left) if left is not None else ""),
        *_now(state, pods, now),
        *_curves(state, width, blocks),
        *_last_step(state),
        *_validations(state, width, blocks),
    ]
    return titled(name, state.status.phase, sections, console)


def _now(state: RunState, pods: Mapping[str, str], now: float) -> Iterator[RenderableType]:
    """Yield what the run does, its message, and the pods that it waits for."""
    status, text = state.status, Text()
    if state.is_waiting:
        waited = f"waiting for pods, {duration(now - status.since)}"
        text.append(waited if status.since else "starting pods")
    elif status.stage:
        step = f"step {status.step}: " if status.step and status.phase == "Training" else ""
        rows = f"{rows_line(status)}, " if status.rows[1] else ""
        text.append(f"{step}{printable(status.stage)}, {rows}{duration(now - status.since)}")
    if status.restarts:
        text.append(f"{'  ' if text else ''}restarts: {status.restarts}", style="yellow")
    if text:
        yield labelled("now", text)
    if status.message:
        short = printable(status.message.splitlines()[0])[:_MESSAGE_CHARACTERS]
        yield labelled("message", Text(short, style="yellow"))
    if pods:
        lines = Table.grid(padding=(0, 2, 0, 0))
        lines.add_column()
        lines.add_column(no_wrap=True)
        for name, phase in pods.items():
            style = {"ready": "green", "lost": "red", "not up": "dim"}.get(phase, "yellow")
            lines.add_row(Text(printable(name)), Text(printable(phase), style=style))
        yield labelled("pods", lines)


def _curves(state: RunState, width: int, blocks: Sequence[str]) -> Iterator[RenderableType]:
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(width=LABEL_WIDTH, style="dim")
    table.add_column(width=_VALUE_WIDTH, justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    for label, values in state.figure_series().items():
        style = "bold green" if label == "reward" else ""
        line = sparkline(values, width - LABEL_WIDTH - _VALUE_WIDTH - 3, blocks)
        curve = Text(line, style="green" if style else "blue")
        table.add_row(label, Text(number(values[-1]), style=style), curve)
    if table.row_count:
        yield table


def _last_step(state: RunState) -> Iterator[RenderableType]:
    for last in state.steps[-1:]:
        whole = last.values.get(run_state.STEP_SECONDS, 0.0)
        shown = [
            f"{printable(stage)} {duration(seconds)}"
            for stage, seconds in last.stage_seconds
            if seconds >= _SMALLEST_SHARE * whole
        ]
        text = Text(duration(whole), style="bold")
        text.append(f" = {' + '.join(shown)}" if shown else "", style="not bold")
        yield labelled("last step", text)


def _validations(state: RunState, width: int, blocks: Sequence[str]) -> Iterator[RenderableType]:
    series = {printable(name): values for name, values in state.validation_series().items()}
    if not series:
        return
    names = list(series)[:_VALIDATIONS_SHOWN]
    name_width = max(map(len, names))
    curve_width = (width - LABEL_WIDTH) // 4 if width >= _ROOMY else 0
    lines = []
    for name in names:
        first, last = series[name][0], series[name][-1]
        text = Text(f"{name:<{name_width}}  ").append(number(first), style="bold green")
        if len(series[name]) > 1:
            text.append(f" -> {number(last)}", style="bold green")
            text.append(f"  {sparkline(series[name], curve_width, blocks)}", style="green")
        lines.append(text)
    if len(series) > len(names):
        lines.append(Text(f"and {len(series) - len(names)} more", style="dim"))
    yield labelled("validation", Text("\n").join(lines))
