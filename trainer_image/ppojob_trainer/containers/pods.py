"""Pods of rows, which tools pods create on a cluster: a container each, entered by `exec`."""

import http.client
import itertools
import logging
import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from http import HTTPMethod, HTTPStatus
from typing import Any, Final

import msgspec
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from ppojob_api.problem import shown
from ppojob_api.v1alpha1.agent import ContainersSpec
from ppojob_api.well_known import LABEL_ROW_OF, row_pod_name
from ppojob_trainer.containers.shell import (
    FIRST_PROCESS,
    ContainerLost,
    ContainerNotStarted,
    Executed,
    digest_of,
    run_from_stdin,
)
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.kubernetes_api import ApiAccess, path_of, refusal

_log = logging.getLogger(__name__)
_API: Final = "/api/v1"
_AGENT: Final = "ppojob-tools"
_CONTAINER: Final = "row"
_ROW: Final = "ppojob.dev/row"
"""Annotation: the name of the row."""
_PROTOCOL: Final = Subprotocol("v4.channel.k8s.io")
_STDIN, _STDOUT, _STDERR, _STATUS = range(4)
"""Channels of `exec`, the first byte of each message."""
_ANSWER_SECONDS: Final = 30.0
_WAITS: Final = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Seconds between looks at a pod that starts; the last one is repeated."""
_ATTEMPTS: Final = 4
_QUOTA: Final = "exceeded quota"
"""In the refusal of a pod for which a ResourceQuota has no room now."""
_HOPELESS: Final = frozenset(
    {"InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError", "CreateContainerError"}
)
"""Reasons of a container that waits, which time does not change."""


class _State(msgspec.Struct):
    reason: str = ""
    message: str = ""


class _States(msgspec.Struct):
    waiting: _State | None = None
    terminated: _State | None = None


class _ContainerStatus(msgspec.Struct):
    state: _States = msgspec.field(default_factory=_States)


class _Condition(msgspec.Struct):
    type: str
    status: str
    message: str = ""


class _Status(msgspec.Struct):
    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: list[_Condition] = []
    containers: list[_ContainerStatus] = msgspec.field(name="containerStatuses", default=[])


class _Pod(msgspec.Struct):
    status: _Status


class _Metadata(msgspec.Struct):
    name: str
    uid: str


class _Placed(msgspec.Struct):
    node_selector: dict[str, str] = msgspec.field(name="nodeSelector", default={})
    tolerations: list[dict[str, Any]] = []
    image_pull_secrets: list[dict[str, str]] = msgspec.field(name="imagePullSecrets", default=[])


class OwnPod(msgspec.Struct):
    """This tools pod: what the pods of rows have of it."""

    metadata: _Metadata
    spec: _Placed


@dataclass(frozen=True)
class RowPods:
    """Creates the pods of rows.

    Attributes:
        owner: name of this tools pod. Pods of rows are placed like it, and deleted with it.
    """

    access: ApiAccess
    namespace: str
    job: str
    owner: str
    spec: ContainersSpec

    def check(self) -> None:
        """Have the API server check a pod without creating it; raises ConfigError."""
        for wait in (*_WAITS, None):
            why = self._refusal()
            if not why:
                return
            if wait is not None:
                time.sleep(wait)  # it may not know the account's rights yet
        got = shown(self.spec.model_dump(by_alias=True, exclude_unset=True))
        raise ConfigError(
            f"spec.agent.containers: got {got}: the API server refuses the pod of a row: "
            f"{why}; what the namespace admits (docs/agents.md)"
        )

    def _refusal(self) -> str:
        """Return why a pod is refused now; empty if it is not, or only for want of room."""
        try:
            manifest = row_pod(self, "0" * 16, "", self.spec.image or "none")
        except ContainerNotStarted as refused:
            return str(refused)
        status, answer = self.request(HTTPMethod.POST, body=manifest, dryRun="All")
        why = refusal(answer).message or f"HTTP {status}"
        return "" if status == HTTPStatus.CREATED or _QUOTA in why else why

    def open(self, row: str, image: str) -> "RowPod":
        """Create the pod of a row and wait until it runs; see `OpenContainer`."""
        digest = digest_of(row)
        until = time.monotonic() + self.spec.start_seconds
        pod = RowPod(self, row_pod_name(self.job, digest))
        try:
            pod.create(row_pod(self, digest, row, image), until)
            pod.wait_until_it_runs(until)
        except BaseException:
            pod.close()
            raise
        return pod

    @cached_property
    def own(self) -> OwnPod:
        """This tools pod."""
        status, answer = self.request(HTTPMethod.GET, self.owner)
        if status != HTTPStatus.OK:
            raise ContainerNotStarted(f"the pod {self.owner}: {refusal(answer).message}")
        return msgspec.json.decode(answer, type=OwnPod)

    def request(
        self, method: HTTPMethod, *names: str, body: Mapping[str, Any] | None = None, **query: str
    ) -> tuple[int, bytes]:
        """Make a request about pods, again if there is no answer or the server is busy.

        Raises ContainerLost without an answer.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            why = ""
            try:
                path = path_of(_API, self.namespace, "pods", *names, **query)
                status, answer = self.access.request(
                    method, path, body, agent=_AGENT, seconds=_ANSWER_SECONDS
                )
                if status < 500 and status != HTTPStatus.TOO_MANY_REQUESTS:
                    return status, answer
                why = f"HTTP {status}: {refusal(answer).message}"
            except (OSError, http.client.HTTPException) as problem:
                why = f"{type(problem).__name__}: {problem}"
            _log.warning("%s of the pod %s: %s", method, "/".join(names), why)
            time.sleep(attempt)
        raise ContainerLost(f"the API server does not answer: {why}")


def row_pod(pods: RowPods, digest: str, row: str, image: str) -> dict[str, Any]:
    """Return the manifest of the pod of a row, which the chart's policy admits."""
    spec, own = pods.spec, pods.own
    user = {} if spec.user is None else {"runAsUser": spec.user, "runAsGroup": spec.user}
    runtime = {"runtimeClassName": spec.runtime_class_name} if spec.runtime_class_name else {}
    resources = {"cpu": spec.cpu, "memory": spec.memory, "ephemeral-storage": spec.storage}
    container = {
        "name": _CONTAINER,
        "image": image,
        "command": ["sh", *FIRST_PROCESS],
        "resources": {"requests": resources, "limits": resources},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    owner = {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": own.metadata.name,
        "uid": own.metadata.uid,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": row_pod_name(pods.job, digest),
            "labels": {LABEL_ROW_OF: pods.job},
            "annotations": {_ROW: row},
            "ownerReferences": [owner],
        },
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 0,
            "hostname": "row",
            "securityContext": {
                "runAsNonRoot": spec.user != 0,
                "seccompProfile": {"type": "RuntimeDefault"},
                **user,
            },
            "containers": [container],
            "nodeSelector": own.spec.node_selector,
            "tolerations": own.spec.tolerations,
            "imagePullSecrets": own.spec.image_pull_secrets,
            **runtime,
        },
    }


@dataclass(frozen=True)
class RowPod:
    """The pod of a row."""

    pods: RowPods
    name: str

    def create(self, manifest: Mapping[str, Any], until: float) -> None:
        """Create the pod, behind an earlier one and once a quota has room for it."""
        while True:
            status, answer = self.pods.request(HTTPMethod.POST, body=manifest)
            if status == HTTPStatus.CREATED:
                return
            why = refusal(answer).message
            has_one = status == HTTPStatus.CONFLICT  # its files are made again
            if not (has_one or _QUOTA in why) or time.monotonic() > until:
                raise ContainerNotStarted(f"the pod {self.name}: {why}")
            if has_one:
                self.close()
            time.sleep(_WAITS[1])

    def wait_until_it_runs(self, until: float) -> None:
        """Wait for the container."""
        for wait in itertools.chain(_WAITS, itertools.repeat(_WAITS[-1])):
            status = self._status()
            if status.phase == "Running":
                return
            why = f"the pod {self.name}: {_why(status) or status.phase}"
            if status.phase in {"Failed", "Succeeded"}:
                raise ContainerLost(why)
            states = [one.state.waiting for one in status.containers]
            is_hopeless = any(one is not None and one.reason in _HOPELESS for one in states)
            if is_hopeless or time.monotonic() > until:
                raise ContainerNotStarted(why)
            time.sleep(wait)

    def execute(self, script: bytes, seconds: float, most_bytes: int) -> Executed:
        """Run a script; see `Container`."""
        taken = {channel: bytearray() for channel in (_STDOUT, _STDERR, _STATUS)}
        stopped = ""
        try:
            with self._connection(len(script)) as connection:
                connection.send(bytes((_STDIN,)) + script)
                until = time.monotonic() + seconds
                while not stopped:
                    message = connection.recv(max(0.0, until - time.monotonic()))
                    if isinstance(message, bytes) and message:
                        taken.setdefault(message[0], bytearray()).extend(message[1:])
                    if sum(map(len, taken.values())) > most_bytes:
                        stopped = "output"
        except TimeoutError:
            stopped = "time"
        except ConnectionClosed:
            pass
        except (OSError, WebSocketException) as problem:
            raise self._lost(f"{type(problem).__name__}: {problem}") from None
        if not stopped and not _has_exit_status(taken[_STATUS]):
            raise self._lost(taken[_STATUS].decode(errors="replace"))
        return Executed(bytes(taken[_STDOUT]), bytes(taken[_STDERR]), stopped)

    def _connection(self, length: int) -> ClientConnection:
        """Open the connection on which the container reads a script of this many bytes.

        Until then nothing has run, so it is tried again while the pod runs. Raises ContainerLost.
        """
        access = self.pods.access
        query = [
            ("container", _CONTAINER),
            *(("command", one) for one in run_from_stdin(length)),
            *((stream, "true") for stream in ("stdin", "stdout", "stderr")),
        ]
        path = path_of(_API, self.pods.namespace, "pods", self.name, "exec")
        host = f"[{access.host}]" if ":" in access.host else access.host
        url = f"wss://{host}:{access.port}{path}?{urllib.parse.urlencode(query)}"
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return connect(
                    url,
                    ssl=access.trusted(),
                    additional_headers=access.authorization(),
                    user_agent_header=_AGENT,
                    subprotocols=[_PROTOCOL],
                    open_timeout=_ANSWER_SECONDS,
                    close_timeout=1,
                    proxy=None,
                    compression=None,
                    max_size=None,
                )
            except InvalidStatus as refused:
                why = refusal(bytes(refused.response.body or b"")).message
            except (OSError, WebSocketException) as problem:
                why = f"{type(problem).__name__}: {problem}"
            if self._status().phase != "Running":
                break
            time.sleep(attempt)
        raise self._lost(why)

    def close(self) -> None:
        """Delete the pod. Idempotent."""
        status, answer = self.pods.request(HTTPMethod.DELETE, self.name, gracePeriodSeconds="0")
        if status not in {HTTPStatus.OK, HTTPStatus.ACCEPTED, HTTPStatus.NOT_FOUND}:
            _log.warning("the pod %s was not deleted: %s", self.name, refusal(answer).message)

    def _status(self) -> _Status:
        status, answer = self.pods.request(HTTPMethod.GET, self.name)
        if status != HTTPStatus.OK:
            raise ContainerLost(f"the pod {self.name}: {refusal(answer).message}")
        return msgspec.json.decode(answer, type=_Pod).status

    def _lost(self, why: str) -> ContainerLost:
        status = self._status()
        return ContainerLost((status.phase != "Running" and _why(status)) or why)


def _has_exit_status(ended: bytearray) -> bool:
    """Return whether `exec` says that the program has ended, not the connection or the pod."""
    return b'"Success"' in ended or b'"NonZeroExitCode"' in ended


def _why(status: _Status) -> str:
    """Return why a pod does not run, by what Kubernetes says of it."""
    states = [one.state.terminated or one.state.waiting for one in status.containers]
    told = [f"{one.reason}: {one.message}".strip(": ") for one in states if one is not None]
    told += [f"{status.reason}: {status.message}".strip(": ")]
    told += [one.message for one in status.conditions if one.status == "False"]
    return next(filter(None, told), "")
