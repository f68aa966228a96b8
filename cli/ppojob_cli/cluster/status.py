"""`kubectl ppojob status NAME`: how a job is, at a glance."""

import sys
from typing import TYPE_CHECKING

import click

from ppojob_cli.cluster.options import on_cluster

if TYPE_CHECKING:
    from rich.console import Console

    from ppojob_cli.cluster.connection import ClusterConnection
    from ppojob_operator.state import Job

_POLL_SECONDS = 2.0


@click.command()
@on_cluster
@click.option("--watch", is_flag=True, help="Until the job is over, or Ctrl-C.")
def status(connection: "ClusterConnection", name: str, *, watch: bool) -> None:
    """Phase, progress, roles, conditions and last failures of a job."""
    from rich.console import Console

    from ppojob_cli.cluster.jobs import find_job

    job = find_job(connection, name)
    console = Console()
    if sys.stdout.isatty() and not console.is_dumb_terminal:
        _draw(console, connection, job, watch=watch)
    else:
        _write(connection, job, watch=watch)


def _draw(console: "Console", connection: "ClusterConnection", job: "Job", *, watch: bool) -> None:
    from rich.live import Live

    from ppojob_cli.cluster.jobs import looks
    from ppojob_cli.cluster.picture import drawing
    from ppojob_cli.panel import Canvas
    from ppojob_operator.conditions import has_ended

    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        for one in looks(connection, job, _POLL_SECONDS):
            is_ascii = not console.encoding.startswith("utf")
            canvas = Canvas(console.width, ascii_only=is_ascii)
            live.update(drawing(one, connection.now, canvas), refresh=True)
            if not watch or has_ended(one.status):
                return


def _write(connection: "ClusterConnection", job: "Job", *, watch: bool) -> None:
    """Write the status, and again whenever it is another one."""
    from ppojob_cli.cluster.jobs import looks
    from ppojob_cli.cluster.picture import plain_lines
    from ppojob_operator.conditions import has_ended

    shown = None
    for one in looks(connection, job, _POLL_SECONDS):
        if one.status != shown:
            if shown is not None:
                click.echo()
            for line in plain_lines(one, connection.now):
                click.echo(line)
        shown = one.status
        if not watch or has_ended(one.status):
            return
