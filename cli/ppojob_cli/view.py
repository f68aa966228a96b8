"""What a person sees while a job runs: a live table on a terminal, plain lines elsewhere.

A view reads the run folder and nothing else, so it shows a run of any machine alike. It never
stops a run: a terminal that goes away takes only the view with it.
"""

import sys
import time
from io import TextIOWrapper
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from ppojob_api.run_config import RunConfig
from ppojob_cli.run_reader import RunReader
from ppojob_cli.shown import PodStates, Shown
from ppojob_cli.summary import Ending, RunSummary


class View(Protocol):
    """Shows a run."""

    def __enter__(self) -> Self:
        """Begin to show."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop showing what moves."""
        ...

    def refresh(self, pod_states: PodStates) -> None:
        """Look at the run folder and show what is new."""
        ...

    def note(self, text: str) -> None:
        """Show a line that is about the run as a whole."""
        ...

    def ended(self, ending: Ending) -> None:
        """Show how it ended, with what is left behind."""
        ...

    def already_done(self, summary: RunSummary) -> None:
        """Say that there is nothing left to do."""
        ...


def open_view(config: RunConfig, folder: Path, *, plain: bool) -> View:
    """The view for where the output goes; open it before the pods are started.

    Args:
        config: What runs.
        folder: The run folder.
        plain: Whether lines are wanted also on a terminal.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A model writes any character; one that the terminal lacks must not end the run.
            stream.reconfigure(errors="backslashreplace")
    shown = Shown(
        name=config.name,
        folder=folder,
        reader=RunReader(folder, since=time.time()),
        num_samples=config.spec.num_examine,
    )
    if not plain and sys.stdout.isatty():
        from rich.console import Console

        console = Console()
        if not console.is_dumb_terminal:
            from ppojob_cli.live_view import LiveView

            return LiveView(shown, console)
    from ppojob_cli.plain_view import PlainView

    return PlainView(shown)
