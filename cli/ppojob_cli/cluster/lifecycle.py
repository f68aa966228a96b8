"""`kubectl ppojob status`, `suspend` and `resume`: a job's state, and whether it runs."""

import sys
from contextlib import nullcontext

import click
from rich.console import Console
from rich.live import Live

from ppojob_api import contract
from ppojob_api.problem import printable
from ppojob_cli.cluster.connection import ClusterConnection
from ppojob_cli.cluster.jobs import as_job, find_job, poll_job
from ppojob_cli.cluster.options import on_cluster
from ppojob_cli.cluster.picture import drawing, plain_lines
from ppojob_cli.input_error import InputError
from ppojob_operator.conditions import has_ended
from ppojob_operator.kinds import JOB
from ppojob_operator.state import Job

_POLL_SECONDS = 1.0
_WATCH_SECONDS = 2.0


@click.command()
@on_cluster
@click.option("--watch", is_flag=True, help="Watch until the job has ended, or Ctrl-C.")
def status(connection: ClusterConnection, name: str, *, watch: bool) -> None:
    """Phase, progress, roles, conditions and last failures of a job."""
    job, console, shown = find_job(connection, name), Console(), None
    live = Live(console=console, auto_refresh=False, vertical_overflow="crop")
    is_drawn = sys.stdout.isatty() and not console.is_dumb_terminal
    with live if is_drawn else nullcontext():
        for one in poll_job(connection, job, _WATCH_SECONDS):
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


@click.command()
@on_cluster
@click.option("--wait", is_flag=True, help="Wait until its pods are gone.")
def suspend(connection: ClusterConnection, name: str, *, wait: bool) -> None:
    """Suspend a job after its step, and release its pods.

    It writes a checkpoint first. With --wait the exit status is 3 if the job ends instead.
    """
    _set(connection, name, is_suspended=True, wait=wait)


@click.command()
@on_cluster
@click.option("--wait", is_flag=True, help="Wait until it trains again.")
def resume(connection: ClusterConnection, name: str, *, wait: bool) -> None:
    """Resume a suspended job from its checkpoint, bit for bit.

    With --wait the exit status is 3 if the job fails.
    """
    _set(connection, name, is_suspended=False, wait=wait)


def _set(connection: ClusterConnection, name: str, *, is_suspended: bool, wait: bool) -> None:
    job = find_job(connection, name)
    if has_ended(job.status):
        phase = job.status.phase
        raise InputError(f'NAME: got "{name}": it has ended, {phase}; an active job')
    if job.lifecycle.suspend == is_suspended:
        click.echo(f"{name}: {'suspended' if is_suspended else 'not suspended'} already")
    else:
        change = {"spec": {"lifecycle": {"suspend": is_suspended}}}
        job = as_job(connection.patch(JOB.path(connection.namespace, name), change))
        click.echo(f"{name}: will be {'suspended' if is_suspended else 'resumed'}")
    if wait:
        _wait(connection, job, is_suspended=is_suspended)


def _wait(connection: ClusterConnection, job: Job, *, is_suspended: bool) -> None:
    """Print the job's changes until it reaches the requested phase, or ends."""
    printed, wanted = "", "Suspended" if is_suspended else "Running"
    generation = job.generation
    for now in poll_job(connection, job, _POLL_SECONDS):
        status = now.status
        if (status.observed_generation or 0) >= generation:
            line = printable(": ".join(filter(None, (status.phase, status.reason, status.message))))
            if line != printed:
                click.echo(f"{job.name}: {line}")
            printed = line
            if status.phase == wanted:
                return
        if has_ended(status):
            is_bad = is_suspended or status.phase == "Failed"
            raise SystemExit(contract.EXIT_FAILED if is_bad else contract.EXIT_DONE)
