"""Reads the logs of a job's pods from the API server: what is there, and what is still to come."""

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Final

from ppojob_api.well_known import RoleName
from ppojob_cli.cluster.connection import ClusterConnection, LineStream
from ppojob_cli.cluster.jobs import find_job, pods_of
from ppojob_cli.cluster.log_lines import LogLine, Position, ReorderBuffer, stamped
from ppojob_cli.input_error import InputError
from ppojob_operator.build.pod_template import CONTAINER
from ppojob_operator.conditions import has_ended
from ppojob_operator.errors import ClusterError, UnavailableError
from ppojob_operator.kinds import POD
from ppojob_operator.state import Job, Pod

HOLD_SECONDS: Final = 0.5
"""How long a line waits for an earlier one of another pod."""
_LOOK_SECONDS: Final = 2.0
_AGAIN_SECONDS: Final = 1.0
_TICK_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which logs are wanted.

    Attributes:
        role: whose pods; None: all.
        previous: of the containers before those that run now.
        since_seconds: how far back; None: from the beginning.
        tail: lines of each pod at most; None: all.
    """

    role: RoleName | None = None
    previous: bool = False
    since_seconds: int | None = None
    tail: int | None = None

    def chosen(self, connection: ClusterConnection, job: Job) -> list[Pod]:
        """The pods that have such logs, by name.

        Raises:
            ClusterError: they may not be seen.
        """
        pods = (pod for pod in pods_of(connection, job) if self.role in {None, pod.role})
        return sorted(
            (pod for pod in pods if not self.previous or pod.restarts), key=lambda pod: pod.name
        )

    @property
    def query(self) -> dict[str, str]:
        """As the API server is asked."""
        asked = {
            "previous": "true" if self.previous else None,
            "sinceSeconds": self.since_seconds,
            "tailLines": self.tail,
        }
        return {name: str(value) for name, value in asked.items() if value is not None}


def open_log(connection: ClusterConnection, namespace: str, pod: str, **query: str) -> LineStream:
    """The log of a pod's container.

    Raises:
        ClusterError: there is no such pod, its container has not begun, or nobody answers.
    """
    path = f"{POD.path(namespace, pod)}/log"
    is_endless = "follow" in query
    asked = {"container": CONTAINER, "timestamps": "true", **query}
    return connection.lines(path, endless=is_endless, **asked)


def history(
    connection: ClusterConnection, pods: list[Pod], wanted: Wanted, tell: Callable[[str], None]
) -> dict[str, Iterator[LogLine]]:
    """What the pods have logged until now, a stream each, by pod; `tell` takes lines about others.

    Raises:
        ClusterError: nobody answers, or logs may not be seen.
    """
    streams = {}
    for pod in pods:
        try:
            lines = open_log(connection, pod.namespace, pod.name, **wanted.query)
        except ClusterError as problem:
            # One kubelet that does not answer is no reason to hide what other pods say.
            if problem.status in {0, 401, 403}:
                raise
            tell(f"{pod.name}: no log: {problem}")
            continue
        streams[pod.name] = stamped(pod.name, lines)
    return streams


class Follower(threading.Thread):
    """Reads the log of the pod of one name, across its containers and its replacements."""

    def __init__(
        self,
        connection: ClusterConnection,
        namespace: str,
        pod: str,
        position: Position,
        put: Callable[[LogLine], None],
    ) -> None:
        super().__init__(name=f"log of {pod}", daemon=True)
        self._connection = connection
        self._namespace = namespace
        self._pod = pod
        self._position = position
        self._put = put
        self._end = threading.Event()
        self._stream: LineStream | None = None

    def run(self) -> None:
        """Read, and begin again where the stream has ended, until told to end."""
        while not self._end.is_set():
            query = {"follow": "true", "sinceTime": self._position.since}
            # The container has not begun, or is gone, or the API server is away: it is asked again.
            with suppress(ClusterError):
                self._stream = open_log(self._connection, self._namespace, self._pod, **query)
                for line in self._position.rest(stamped(self._pod, self._stream)):
                    self._put(line)
            self._end.wait(_AGAIN_SECONDS)

    def end(self) -> None:
        """Read no more."""
        self._end.set()
        if self._stream is not None:
            self._stream.stop()


def follow(
    connection: ClusterConnection, job: Job, wanted: Wanted, positions: Mapping[str, Position]
) -> Iterator[LogLine]:
    """The lines that are still to come, of all pods that there are and will be, by time.

    Ends when the job is over and its pods are gone.

    Raises:
        ClusterError: the pods may not be seen.
    """
    lines: SimpleQueue[LogLine] = SimpleQueue()
    buffer, followers = ReorderBuffer(HOLD_SECONDS), dict[str, Follower]()
    look_at, is_done = 0.0, False
    try:
        while not is_done:
            if time.monotonic() >= look_at:
                with suppress(UnavailableError):
                    names = [pod.name for pod in wanted.chosen(connection, job)]
                    is_done = not names and _is_over(connection, job)
                    for name in names:
                        if name not in followers:
                            position = positions.get(name) or Position()
                            where = (connection, job.namespace, name, position)
                            followers[name] = Follower(*where, lines.put)
                            followers[name].start()
                look_at = time.monotonic() + _LOOK_SECONDS
            _move(lines, buffer)
            yield from buffer.take(time.monotonic())
        yield from buffer.take(math.inf)
    finally:
        for follower in followers.values():
            follower.end()


def _move(lines: SimpleQueue[LogLine], buffer: ReorderBuffer) -> None:
    """Take what has come, and wait a little where nothing has."""
    with suppress(Empty):
        buffer.put(lines.get(timeout=_TICK_SECONDS), time.monotonic())
        while True:
            buffer.put(lines.get_nowait(), time.monotonic())


def _is_over(connection: ClusterConnection, job: Job) -> bool:
    try:
        now = find_job(connection, job.name)
    except InputError:
        return True
    return now.uid != job.uid or has_ended(now.status)
