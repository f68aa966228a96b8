"""Progress lines of commands that work for a long time."""

import time
from typing import Final

import click

_INTERVAL_SECONDS: Final = 5.0


class ProgressLines:
    """Prints a progress line to standard error or output, at most one every few seconds."""

    def __init__(self, *, err: bool = False) -> None:
        self._err = err
        self._due = time.monotonic() + _INTERVAL_SECONDS

    def show(self, text: str) -> None:
        """Print a line if it is time for one."""
        if (now := time.monotonic()) >= self._due:
            self._due = now + _INTERVAL_SECONDS
            click.echo(text, err=self._err)
