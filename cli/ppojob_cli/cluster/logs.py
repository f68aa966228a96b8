"""`kubectl ppojob logs NAME`: the logs of all pods of a job, merged by time."""

import math
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Final

import click

from ppojob_api.problem import printable
from ppojob_api.run_config import resolve
from ppojob_api.well_known import ROLE_SLUGS, RoleName
from ppojob_cli.cluster.connection import ClusterConnection, LineStream
from ppojob_cli.cluster.jobs import find_job, pods_of
from ppojob_cli.cluster.log_lines import LogLine, Position, ReorderBuffer, merged, stamped
from ppojob_cli.cluster.options import on_cluster
from ppojob_cli.figures import seconds_of
from ppojob_cli.input_error import InputError
from ppojob_operator.build.pod_template import CONTAINER
from ppojob_operator.conditions import has_ended
from ppojob_operator.errors import ClusterError, UnavailableError
from ppojob_operator.kinds import POD
from ppojob_operator.state import Job, Pod

_COLOURS: Final = ("cyan", "green", "yellow", "blue", "magenta", "bright_cyan", "bright_green")
_HOLD_SECONDS: Final = 0.5  # time that a line is held back for earlier lines of other pods
_LOOK_SECONDS: Final = 2.0
_AGAIN_SECONDS: Final = 1.0
_TICK_SECONDS: Final = 0.1


@click.command()
@on_cluster
@click.option("--role", metavar="ROLE", help="Only pods of one role, such as actorRollout.")
@click.option("-f", "--follow", is_flag=True, help="Follow the logs until the job has ended.")
@click.option("--since", metavar="TIME", help="Only lines newer than 45s, 5m or 1h30m.")
@click.option(
    "--tail", type=click.IntRange(0), metavar="N", help="Only the last N lines of all pods."
)
@click.option("-p", "--previous", is_flag=True, help="Logs of the previous containers.")
def logs(
    connection: ClusterConnection,
    name: str,
    *,
    role: str | None,
    follow: bool,
    since: str | None,
    tail: int | None,
    previous: bool,
) -> None:
    """Logs of all pods of a job, merged by time.

    Each line begins with the name of its pod. With --follow it also follows new and replacement
    pods. Times are those of the pods' nodes.
    """
    if follow and previous:
        raise InputError(
            "--follow: got --previous with it: containers that have ended say nothing new; "
            "one of the two"
        )
    job, chosen = find_job(connection, name), _role(role)
    wanted = {
        "previous": "true" if previous else None,
        "sinceSeconds": _seconds(since),
        "tailLines": tail,
    }
    query = {key: str(value) for key, value in wanted.items() if value is not None}
    pods = [pod for pod in _pods(connection, job, chosen) if pod.restarts or not previous]
    if not pods and not follow:
        what = "no container that was started again" if previous else "no pods now"
        raise InputError(
            f'NAME: got "{name}": it is {job.status.phase} and has {what}; '
            f"kubectl ppojob explain {name} says why"
        )
    # Later lines are new, whichever past lines were requested.
    now = connection.now.replace(microsecond=0)
    positions = {pod.name: Position(now) for pod in pods}
    streams = []
    for pod in pods:
        try:
            lines = _open_log(connection, pod.namespace, pod.name, **query)
        except ClusterError as problem:
            # The logs of other pods are shown even if one kubelet gives no answer.
            if problem.status in {0, 401, 403}:
                raise
            if not follow:  # else it is retried anyway
                click.echo(printable(f"{pod.name}: no log: {problem}"), err=True)
            continue
        streams.append(positions[pod.name].noted(stamped(pod.name, lines)))
    width = _width(job)
    _write(merged(streams, tail), width)
    if follow:
        _write(_follow(connection, job, chosen, positions), width)


def _role(text: str | None) -> RoleName | None:
    """Return a role by its name, or by its part of pod names."""
    for role, slug in ROLE_SLUGS.items():
        if text in {role, slug}:
            return role
    if text is not None:
        allowed = ", ".join(ROLE_SLUGS)
        raise InputError(f'--role: got "{text}": there is no such role; one of {allowed}')
    return None


def _seconds(text: str | None) -> int | None:
    seconds = None if text is None else seconds_of(text)
    if text is not None and not seconds:
        raise InputError(f'--since: got "{text}": not a duration; 45s, 5m or 1h30m')
    return seconds


def _pods(connection: ClusterConnection, job: Job, role: RoleName | None) -> list[Pod]:
    pods = (pod for pod in pods_of(connection, job) if role in {None, pod.role})
    return sorted(pods, key=lambda pod: pod.name)


def _open_log(connection: ClusterConnection, namespace: str, pod: str, **query: str) -> LineStream:
    """Open the log of a pod's container; a `ClusterError` if it has not started."""
    path = f"{POD.path(namespace, pod)}/log"
    query = {"container": CONTAINER, "timestamps": "true", **query}
    return connection.lines(path, endless="follow" in query, **query)


def _width(job: Job) -> int:
    """Return the length of the longest pod name, including pods to come, to align lines."""
    if job.validated is None:
        return 0
    roles = resolve(job.validated).topology.with_own_pods
    return max(len(pod.name) for role in roles for pod in role.pods)


def _write(lines: Iterable[LogLine], width: int) -> None:
    for line in lines:
        colour = _COLOURS[zlib.crc32(line.pod.encode()) % len(_COLOURS)]
        head = click.style(f"{line.pod:<{width}} |", fg=colour)
        click.echo(f"{head} {printable(line.text.expandtabs())}")


@dataclass
class _Follower:
    """Follows the log of a pod name, across restarted containers and replacement pods."""

    connection: ClusterConnection
    namespace: str
    pod: str
    position: Position
    put: Callable[[LogLine], None]
    _end: threading.Event = field(default_factory=threading.Event)
    _stream: LineStream | None = None

    def run(self) -> None:
        """Read until `end` is called, and reopen the stream when it ends."""
        while not self._end.is_set():
            query = {"follow": "true", "sinceTime": self.position.since}
            # Retried: the container has not started or is gone, or the API server gives no answer.
            with suppress(ClusterError):
                self._stream = _open_log(self.connection, self.namespace, self.pod, **query)
                for line in self.position.rest(stamped(self.pod, self._stream)):
                    self.put(line)
            self._end.wait(_AGAIN_SECONDS)

    def end(self) -> None:
        self._end.set()
        if self._stream is not None:
            self._stream.stop()


def _follow(
    connection: ClusterConnection,
    job: Job,
    role: RoleName | None,
    positions: Mapping[str, Position],
) -> Iterator[LogLine]:
    """Yield the new lines of all current and future pods, by time.

    Ends when the job has ended and its pods are gone.
    """
    lines: SimpleQueue[LogLine] = SimpleQueue()
    buffer, followers = ReorderBuffer(_HOLD_SECONDS), dict[str, _Follower]()
    look_at, is_done = 0.0, False
    try:
        while not is_done:
            if time.monotonic() >= look_at:
                with suppress(UnavailableError):
                    names = [pod.name for pod in _pods(connection, job, role)]
                    is_done = not names and _is_over(connection, job)
                    for name in names:
                        if name not in followers:
                            position = positions.get(name) or Position()
                            new = _Follower(connection, job.namespace, name, position, lines.put)
                            followers[name] = new
                            threading.Thread(target=new.run, daemon=True).start()
                look_at = time.monotonic() + _LOOK_SECONDS
            with suppress(Empty):  # wait briefly for a line, then take all available ones
                buffer.put(lines.get(timeout=_TICK_SECONDS), time.monotonic())
                while True:
                    buffer.put(lines.get_nowait(), time.monotonic())
            yield from buffer.take(time.monotonic())
        yield from buffer.take(math.inf)
    finally:
        for follower in followers.values():
            follower.end()


def _is_over(connection: ClusterConnection, job: Job) -> bool:
    try:
        now = find_job(connection, job.name)
    except InputError:
        return True
    return now.uid != job.uid or has_ended(now.status)
