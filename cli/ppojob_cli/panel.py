"""The frame that a job is drawn in, on this machine and on a cluster alike."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ppojob_api.problem import printable
from ppojob_cli.figures import ASCII_BLOCKS, BLOCKS

MAX_WIDTH: Final = 100
MIN_WIDTH: Final = 40
LABEL_WIDTH: Final = 10

_BORDER_WIDTH: Final = 4
_COLOURS: Final = {
    "Pending": "yellow",
    "Starting": "yellow",
    "Training": "cyan",
    "Running": "cyan",
    "Recovering": "yellow",
    "Suspended": "yellow",
    "Finishing": "cyan",
    "Succeeded": "green",
    "Failed": "red",
    "Interrupted": "yellow",
}


@dataclass(frozen=True, slots=True)
class Canvas:
    """What can be drawn on."""

    width: int
    ascii_only: bool = False

    @classmethod
    def of(cls, console: Console) -> Self:
        """What a terminal shows."""
        return cls(console.width, ascii_only=not console.encoding.startswith("utf"))

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


def titled(
    name: str, phase: str, sections: Sequence[RenderableType], canvas: Canvas
) -> RenderableType:
    """Sections below each other, in a border with the job's name and the colour of its phase."""
    colour = _COLOURS.get(phase, "white")
    return Panel(
        Group(*sections),
        title=Text(f" {printable(name)}: {phase} ", style=f"bold {colour}"),
        title_align="left",
        border_style=colour,
        box=box.ASCII if canvas.ascii_only else box.ROUNDED,
        width=canvas.panel_width,
    )


def progress(done: int, total: int, left: str) -> RenderableType:
    """How far a job is, as a bar.

    Args:
        done: Steps done.
        total: Steps to do; 0 while not known.
        left: How long the rest takes, or empty.
    """
    line = Table.grid(padding=(0, 2, 0, 0), expand=True)
    line.add_column(no_wrap=True)
    line.add_column(ratio=1)
    line.add_column(no_wrap=True, justify="right")
    bar = ProgressBar(total=max(total, 1), completed=done) if total else Text("")
    told = (progress_share(done, total), f"{left} left" if left else "")
    steps = Text(progress_steps(done, total), style="bold")
    line.add_row(steps, bar, Text("  ".join(part for part in told if part)))
    return line


def progress_steps(done: int, total: int) -> str:
    """`step 3 of 8`."""
    return f"step {done} of {total}" if total else f"step {done}"


def progress_share(done: int, total: int) -> str:
    """`37 %`; empty while the total is not known."""
    return f"{100 * done // total} %" if total else ""


def labelled(label: str, content: RenderableType) -> RenderableType:
    """Something with a word before it."""
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(width=LABEL_WIDTH, style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(label, content)
    return table
