"""The view for a terminal: one table that is drawn anew, and above it what stays."""

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from ppojob_cli.frame import frame
from ppojob_cli.panel import Canvas
from ppojob_cli.run_state import PodState, StepRecord
from ppojob_cli.view import Kind, PodStates, View

_STYLES: Final[Mapping[Kind, str]] = {"note": "yellow", "error": "red", "sample": "dim"}


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
