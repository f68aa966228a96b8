"""`kubectl ppojob status NAME`: how a job is, at a glance."""

import sys
from contextlib import nullcontext

import click
from rich.console import Console
from rich.live import Live

from ppojob_cli.cluster.connection import ClusterConnection
from ppojob_cli.cluster.jobs import find_job, poll_job
from ppojob_cli.cluster.options import on_cluster
from ppojob_cli.cluster.picture import drawing, plain_lines
from ppojob_operator.conditions import has_ended

_POLL_SECONDS = 2.0


@click.command()
@on_cluster
@click.option("--watch", is_flag=True, help="Until the job is over, or Ctrl-C.")
def status(connection: ClusterConnection, name: str, *, watch: bool) -> None:
    """Phase, progress, roles, conditions and last failures of a job."""
    job, console, shown = find_job(connection, name), Console(), None
    live = Live(console=console, auto_refresh=False, vertical_overflow="crop")
    is_drawn = sys.stdout.isatty() and not console.is_dumb_terminal
    with live if is_drawn else nullcontext():
        for one in poll_job(connection, job, _POLL_SECONDS):
            if is_drawn:
                live.update(drawing(one, connection.now, console), refresh=True)
            elif one.status != shown:
                if shown is not None:
                    click.echo()
                for line in plain_lines(one, connection.now):
                    click.echo(line)
            shown = one.status
            if not watch or has_ended(one.status):
                return
