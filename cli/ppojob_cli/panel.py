"""Panel of the job view, for local jobs and jobs on a cluster."""

from collections.abc import Sequence
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ppojob_api.problem import printable

MAX_WIDTH: Final = 100
MIN_WIDTH: Final = 40
LABEL_WIDTH: Final = 10

BORDER_WIDTH: Final = 4
_WAITING: Final = ("Pending", "Starting", "Recovering", "Suspended", "Interrupted")
_WORKING: Final = ("Training", "Generating", "Validating", "Running", "Finishing")
_COLOURS: Final = {
    **dict.fromkeys(_WAITING, "yellow"),
    **dict.fromkeys(_WORKING, "cyan"),
    **{"Succeeded": "green", "Failed": "red"},
}


def panel_width(console: Console) -> int:
    """Return the width with the border, limited for short lines."""
    return max(MIN_WIDTH, min(console.width, MAX_WIDTH))


def titled(
    name: str, phase: str, sections: Sequence[RenderableType], console: Console
) -> RenderableType:
    """Stack sections in a border with the job's name, in the colour of its phase."""
    colour = _COLOURS.get(phase, "white")
    return Panel(
        Group(*sections),
        title=Text(f" {printable(name)}: {phase} ", style=f"bold {colour}"),
        title_align="left",
        border_style=colour,
        width=panel_width(console),
    )


def progress(done: int, total: int, left: str) -> RenderableType:
    """Draw a progress bar; `total` is 0 if unknown, `left` the remaining time."""
    line = Table.grid(padding=(0, 2, 0, 0), expand=True)
    line.add_column(no_wrap=True)
    line.add_column(ratio=1)
    line.add_column(no_wrap=True, justify="right")
    bar = ProgressBar(total=max(total, 1), completed=done) if total else Text("")
    steps, *rest = progress_words(done, total, left)
    line.add_row(Text(steps, style="bold"), bar, Text("  ".join(rest)))
    return line


def progress_words(done: int, total: int, left: str) -> list[str]:
    """Return `step 3 of 8`, `37 %` and `1h30m left`, as far as they are known."""
    steps = [f"step {done} of {total}", f"{100 * done // total} %"] if total else [f"step {done}"]
    return [*steps, f"{left} left"] if left else steps


def labelled(label: str, content: RenderableType) -> RenderableType:
    """Put a label before content."""
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(width=LABEL_WIDTH, style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(label, content)
    return table
