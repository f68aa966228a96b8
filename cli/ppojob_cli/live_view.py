"""The view for a terminal: one table that is drawn anew, and above it what stays."""

import contextlib
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from ppojob_api import contract
from ppojob_api.problem import printable
from ppojob_cli.frame import frame
from ppojob_cli.panel import Canvas
from ppojob_cli.run_state import PodState
from ppojob_cli.shown import PodStates, Shown
from ppojob_cli.shown_records import ShownRecords
from ppojob_cli.summary import Ending, RunSummary, ending_lines, summary_lines


class LiveView:
    """Draws the run whenever it is refreshed; no thread of its own.

    Args:
        shown: What is shown.
        console: Where.
    """

    def __init__(self, shown: Shown, console: Console) -> None:
        self._shown = shown
        self._console = console
        self._state = shown.reader.read()
        self._records = ShownRecords(self._state)
        self._pods: tuple[PodState, ...] = ()
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")

    def __enter__(self) -> Self:
        """See `View`."""
        with contextlib.suppress(OSError):
            self._live.start()
        self._draw()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Draw the last moment, and give the cursor back."""
        self._look()
        self._draw()
        with contextlib.suppress(OSError):
            self._live.stop()

    def refresh(self, pod_states: PodStates) -> None:
        """See `View`."""
        self._look()
        self._pods = tuple(pod_states()) if self._state.is_waiting else ()
        self._draw()

    def note(self, text: str) -> None:
        """See `View`."""
        self._print([printable(text)], style="yellow")

    def ended(self, ending: Ending) -> None:
        """See `View`."""
        style = "red" if ending.exit_code == contract.EXIT_FAILED else ""
        lines = ending_lines(ending, self._state.status, self._shown.folder)
        self._print(lines, style=style)

    def already_done(self, summary: RunSummary) -> None:
        """See `View`."""
        self._print(["done already; --output DIR runs it once more elsewhere"])
        self._print(summary_lines(summary, self._shown.folder))

    def _look(self) -> None:
        """Read the folder; samples and rewinds are printed above the table, and stay."""
        self._state = self._shown.reader.read()
        for line in self._records.take_notices(self._state):
            self.note(line)
        new = self._records.take(self._state)
        if self._records.rewind is not None:
            self.note(self._records.rewind)
        for item in new:
            if not item.is_again:
                self._print(self._shown.sample_lines(item.record), style="dim")

    def _draw(self) -> None:
        canvas = Canvas(
            self._console.width, ascii_only=not self._console.encoding.startswith("utf")
        )
        drawn = frame(
            self._shown.name, self._state, self._pods, now=self._shown.clock(), canvas=canvas
        )
        with contextlib.suppress(OSError):
            self._live.update(drawn, refresh=True)

    def _print(self, lines: Iterable[str], *, style: str = "") -> None:
        # A terminal that was closed takes the view with it, never the run.
        with contextlib.suppress(OSError):
            for line in lines:
                self._console.print(Text(line, style=style), soft_wrap=True)
