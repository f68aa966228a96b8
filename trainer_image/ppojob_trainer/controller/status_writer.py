"""Status writer: sends `status.training` of the job's PPOJob to the Kubernetes API server.

`JobResource` is a client of one request, server-side apply, by the standard library. It opens a
connection per request, so that none is ever found dead, and none sticks to one of several servers.
docs/adr/0010 says how a job is told from an earlier one of the same name.

`StatusWriter` sends the newest state from a thread, so it never blocks the loop; a state that was
not sent in time is dropped. It sends at most six states a minute, but a change of stage or
controller goes out at once, and so does the last state, before the process ends.
"""

import http.client
import json
import logging
import random
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from ppojob_api.v1alpha1.status import TrainingStatus
from ppojob_api.well_known import API_VERSION, GROUP, KIND, PLURAL, VERSION
from ppojob_trainer.pod_environment import ApiAccess

_log = logging.getLogger(__name__)
FIELD_MANAGER: Final = "ppojob-controller"
REQUEST_SECONDS: Final = 10.0
TAKEN_OVER: Final = "has taken over"
"""The message of the chart's admission policy for an attempt that decreased."""

_ATTEMPTS: Final = 3
_ANSWER_BYTES: Final = 4 << 20


class NotWrittenError(Exception):
    """The API server did not take a state now; it may take the next one.

    Attributes:
        retry_after: seconds for which it asked to be left alone.
    """

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RefusedError(NotWrittenError):
    """The API server refused; a retry soon would be refused too."""


class DisownedError(Exception):
    """The job is gone, was replaced, or has another controller: stop writing."""


class _ConflictError(Exception):
    """The job changed since it was read."""


class _Metadata(msgspec.Struct):
    uid: str
    version: str = msgspec.field(name="resourceVersion")


class _Job(msgspec.Struct):
    """The fields of a PPOJob that are read."""

    metadata: _Metadata


class _Details(msgspec.Struct):
    name: str = ""


class _Refusal(msgspec.Struct):
    """The fields of an API server's `Status` that are read."""

    message: str = ""
    details: _Details = msgspec.field(default_factory=_Details)


class JobResource:
    """One PPOJob, as its controller sees it.

    `uid` tells it from another job of the same name; `seconds` is how long the API server may be
    silent.
    """

    def __init__(
        self,
        access: ApiAccess,
        *,
        namespace: str,
        name: str,
        uid: str,
        seconds: float = REQUEST_SECONDS,
    ) -> None:
        self._access = access
        self._namespace = namespace
        self._name = name
        self._uid = uid
        self._seconds = seconds
        self._path = (
            f"/apis/{GROUP}/{VERSION}/namespaces/{urllib.parse.quote(namespace)}"
            f"/{PLURAL}/{urllib.parse.quote(name)}/status"
        )
        self._version = ""

    def write(self, training: TrainingStatus) -> None:
        """Write `status.training`, even if another controller wrote it before.

        Raises:
            NotWrittenError: it could not be written now.
            DisownedError: it no longer belongs to this controller.
        """
        for _ in range(_ATTEMPTS):
            try:
                # The version is the fence: the API server checks no uid on a status write.
                self._version = self._version or self._current_version(training)
                self._version = self._apply(training, self._version).version
            except _ConflictError:
                self._version = ""
            else:
                return
        raise NotWrittenError(f"others have written {_ATTEMPTS} times meanwhile")

    def _current_version(self, training: TrainingStatus) -> str:
        """Return the job's version, from a dry-run write: this needs no permission to read."""
        found = self._apply(training)
        if found.uid != self._uid:
            raise DisownedError(f"it is another job now, of uid {found.uid}")
        return found.version

    def _apply(self, training: TrainingStatus, version: str = "") -> _Metadata:
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        metadata = {"namespace": self._namespace, "name": self._name}
        if version:
            metadata["resourceVersion"] = version
        else:
            query["dryRun"] = "All"
        state = training.model_dump(mode="json", by_alias=True, exclude_none=True)
        body = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": metadata,
            "status": {"training": state},
        }
        return self._exchange(f"{self._path}?{urllib.parse.urlencode(query)}", body)

    def _exchange(self, path: str, body: dict[str, Any]) -> _Metadata:
        try:
            token = (self._access.credentials / "token").read_text().strip()
            connection = self._connection()
            try:
                headers = {
                    "Authorization": f"Bearer {token}",
                    "Content-Type": "application/apply-patch+yaml",
                    "Accept": "application/json",
                    "User-Agent": FIELD_MANAGER,
                }
                connection.request("PATCH", path, json.dumps(body), headers)
                answer = connection.getresponse()
                text = answer.read(_ANSWER_BYTES)
            finally:
                connection.close()
            if answer.status == http.HTTPStatus.OK:
                return msgspec.json.decode(text, type=_Job).metadata
        except (OSError, http.client.HTTPException, msgspec.MsgspecError) as problem:
            raise NotWrittenError(f"{type(problem).__name__}: {problem}") from problem
        raise self._refusal(answer.status, text, answer.headers.get("Retry-After", ""))

    def _refusal(self, status: int, text: bytes, retry_after: str) -> Exception:
        """Return the error of an answer other than 200."""
        try:
            said = msgspec.json.decode(text, type=_Refusal)
        except msgspec.MsgspecError:
            said = _Refusal(text[:200].decode(errors="replace"))
        if status == http.HTTPStatus.CONFLICT:
            return _ConflictError(said.message)
        # An API server that comes up may not serve the kind yet, which is a 404 without a name.
        is_gone = status == http.HTTPStatus.NOT_FOUND and said.details.name == self._name
        if is_gone or (status == http.HTTPStatus.FORBIDDEN and TAKEN_OVER in said.message):
            return DisownedError(said.message)
        why = f"HTTP {status}: {said.message}"
        if status >= 500 or status == http.HTTPStatus.TOO_MANY_REQUESTS:
            return NotWrittenError(why, float(retry_after) if retry_after.isdecimal() else 0.0)
        return RefusedError(why)

    def _connection(self) -> http.client.HTTPSConnection:
        trusted = ssl.create_default_context(cafile=str(self._access.credentials / "ca.crt"))
        return http.client.HTTPSConnection(
            self._access.host, self._access.port, timeout=self._seconds, context=trusted
        )


FINAL_SECONDS: Final = 20.0
"""Longest delay of the controller's end by its last state, in seconds."""


@dataclass(frozen=True)
class RateLimit:
    """Rate limits of requests to the API server.

    Attributes:
        interval_seconds: between two states of the same stage.
        first_pause_seconds: after a failure; doubled by each further one.
        longest_pause_seconds: maximum.
        final_pause_seconds: after a failure, once the controller wants to end.
    """

    interval_seconds: float = 10.0
    first_pause_seconds: float = 1.0
    longest_pause_seconds: float = 60.0
    final_pause_seconds: float = 0.5

    def pause(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row."""
        doubled = self.first_pause_seconds * 2.0 ** min(failures - 1, 16)
        return min(doubled, self.longest_pause_seconds) * random.uniform(0.5, 1.0)


class StatusWriter:
    """Sends states; its thread starts on construction.

    `write` sends a state. It raises NotWrittenError, or DisownedError when nothing more of this
    controller is wanted.
    """

    def __init__(
        self, write: Callable[[TrainingStatus], None], pace: RateLimit | None = None
    ) -> None:
        self._write = write
        self._pace = pace or RateLimit()
        self._changed = threading.Condition()
        self._newest: TrainingStatus | None = None
        self._sent: TrainingStatus | None = None
        self._tried_at = float("-inf")
        self._pause_until = float("-inf")
        self._asked_until = float("-inf")
        self._failures = 0
        self._is_disowned = False
        self._deadline: float | None = None
        self._thread = threading.Thread(target=self._run, name="status-writer", daemon=True)
        self._thread.start()

    def submit(self, state: TrainingStatus) -> None:
        """Queue a state, which replaces an unsent one; returns at once."""
        with self._changed:
            self._newest = state
            self._changed.notify()

    def close(self, seconds: float = FINAL_SECONDS) -> None:
        """Send the last state, and end.

        Returns when that is done, when it is refused (by a cluster, say, that has deleted the job
        and its accounts), or after so many seconds.
        """
        with self._changed:
            self._deadline = time.monotonic() + seconds
            self._pause_until = float("-inf")
            self._changed.notify()
        self._thread.join(seconds)
        if self._newest != self._sent and not self._is_disowned:
            _log.warning("status.training: the last state was not written")

    def _run(self) -> None:
        try:
            while (state := self._take()) is not None:
                self._send(state)
        except DisownedError as problem:
            self._is_disowned = True
            _log.warning("status.training is not written any more: %s", problem)

    def _take(self) -> TrainingStatus | None:
        """Wait until the newest state is due; None where there is nothing left to send, or time."""
        with self._changed:
            while True:
                now, is_new = time.monotonic(), self._newest != self._sent
                if self._deadline is not None and (not is_new or now >= self._deadline):
                    return None
                left = self._due_at() - now if is_new else threading.TIMEOUT_MAX
                if left <= 0.0:
                    return self._newest
                end = threading.TIMEOUT_MAX if self._deadline is None else self._deadline - now
                self._changed.wait(min(left, end, threading.TIMEOUT_MAX))

    def _due_at(self) -> float:
        """Return when the newest state may be sent, in monotonic seconds."""
        if self._deadline is not None:
            return max(self._asked_until, self._pause_until)
        rest = float("-inf") if self._is_change() else self._tried_at + self._pace.interval_seconds
        return max(self._asked_until, self._pause_until, rest)

    def _is_change(self) -> bool:
        """Whether stage or controller differ from the state sent last."""
        if self._newest is None or self._sent is None:
            return True
        newest, sent = self._newest, self._sent
        return (newest.attempt, newest.stage) != (sent.attempt, sent.stage)

    def _send(self, state: TrainingStatus) -> None:
        self._tried_at = time.monotonic()
        try:
            self._write(state)
        except NotWrittenError as problem:
            self._fail(problem)
            return
        if self._failures:
            _log.info("status.training is written again")
        self._failures = 0
        self._sent = state

    def _fail(self, problem: NotWrittenError) -> None:
        if not self._failures:
            _log.warning("status.training is not written, the training goes on: %s", problem)
        self._failures += 1
        now = time.monotonic()
        with self._changed:
            pause = self._pace.pause(self._failures)
            if self._deadline is not None:
                pause = min(pause, self._pace.final_pause_seconds)
                if isinstance(problem, RefusedError):
                    self._deadline = now
            self._pause_until = now + pause
            self._asked_until = now + problem.retry_after
