"""`kubectl ppojob logs NAME`: what all pods of a job say, in the order in which they said it."""

import zlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import click

from ppojob_api.problem import printable
from ppojob_api.well_known import ROLE_SLUGS, RoleName
from ppojob_cli.cluster.options import on_cluster
from ppojob_cli.input_error import InputError

if TYPE_CHECKING:
    from ppojob_cli.cluster.connection import ClusterConnection
    from ppojob_cli.cluster.log_lines import LogLine
    from ppojob_operator.state import Job

_COLOURS: Final = ("cyan", "green", "yellow", "blue", "magenta", "bright_cyan", "bright_green")
_ROLES: Final[dict[str, RoleName]] = {slug: role for role, slug in ROLE_SLUGS.items()}


@click.command()
@on_cluster
@click.option("--role", metavar="ROLE", help="Of the pods of one role, such as actorRollout.")
@click.option("-f", "--follow", is_flag=True, help="Go on as lines come, until the job is over.")
@click.option("--since", metavar="TIME", help="Not older than 45s, 5m or 1h30m.")
@click.option("--tail", type=click.IntRange(0), metavar="N", help="The last N lines of all.")
@click.option("-p", "--previous", is_flag=True, help="Of the containers before the present ones.")
def logs(
    connection: "ClusterConnection",
    name: str,
    *,
    role: str | None,
    follow: bool,
    since: str | None,
    tail: int | None,
    previous: bool,
) -> None:
    """Logs of all pods of a job, merged by time.

    Each line begins with the name of its pod. With --follow pods that come later are followed
    too, also those that replace others. Times are those of the pods' nodes.
    """
    from ppojob_cli.cluster import log_streams
    from ppojob_cli.cluster.jobs import find_job
    from ppojob_cli.cluster.log_lines import Position, merged

    if follow and previous:
        raise InputError(
            "--follow: got --previous with it: containers that have ended say nothing new; "
            "one of the two"
        )
    job = find_job(connection, name)
    wanted = log_streams.Wanted(_role(role), previous, _seconds(since), tail)
    pods = wanted.chosen(connection, job)
    if not pods and not follow:
        what = "no container that was started again" if previous else "no pods now"
        raise InputError(
            f'NAME: got "{name}": it is {job.status.phase} and has {what}; '
            f"kubectl ppojob explain {name} says why"
        )
    # What a pod has not said until now is new, whatever of its past was asked for.
    now = connection.now.replace(microsecond=0)
    positions = {pod.name: Position(now) for pod in pods}
    streams = log_streams.history(connection, pods, wanted, lambda line: _tell(line, follow))
    noted = [positions[name].noted(lines) for name, lines in streams.items()]
    width = _width(job)
    _write(merged(noted, tail), width)
    if follow:
        _write(log_streams.follow(connection, job, wanted, positions), width)


def _role(text: str | None) -> RoleName | None:
    """A role by its name, or as it is called in names of pods."""
    if text is None:
        return None
    known = {role: role for role in ROLE_SLUGS} | _ROLES
    if text not in known:
        allowed = ", ".join(ROLE_SLUGS)
        raise InputError(f'--role: got "{text}": there is no such role; one of {allowed}')
    return known[text]


def _seconds(text: str | None) -> int | None:
    from ppojob_cli.figures import seconds_of

    seconds = None if text is None else seconds_of(text)
    if text is not None and not seconds:
        raise InputError(f'--since: got "{text}": it is no time; 45s, 5m or 1h30m')
    return seconds


def _width(job: "Job") -> int:
    """Of the longest name of a pod, so that lines stand below each other also as pods come."""
    from ppojob_api.run_config import resolve

    if job.manifest is None:
        return 0
    roles = resolve(job.manifest).topology.with_own_pods
    return max(len(pod.name) for role in roles for pod in role.pods)


def _write(lines: "Iterable[LogLine]", width: int) -> None:
    for line in lines:
        colour = _COLOURS[zlib.crc32(line.pod.encode()) % len(_COLOURS)]
        head = click.style(f"{line.pod:<{width}} |", fg=colour)
        click.echo(f"{head} {printable(line.text.expandtabs())}")


def _tell(line: str, follow: bool) -> None:
    # Whoever follows waits for those pods anyway.
    if not follow:
        click.echo(printable(line), err=True)
