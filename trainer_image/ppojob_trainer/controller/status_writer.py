"""Sends `status.training` of the PPOJob to the Kubernetes API server.

`JobResource` makes server-side apply requests with the standard library, one connection each. It
distinguishes the job from an earlier one of the same name (docs/adr/0010).

`StatusWriter` sends the newest state from a thread, at most six times a minute. A change of stage
or controller, and the last state, are sent at once.
"""

import http.client
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from http import HTTPMethod
from typing import Any, Final

import msgspec

from ppojob_api.v1alpha1.status import TrainingStatus
from ppojob_api.well_known import API_VERSION, GROUP, KIND, PLURAL, VERSION
from ppojob_trainer.kubernetes_api import ApiAccess, Status, path_of, refusal

_log = logging.getLogger(__name__)
FIELD_MANAGER: Final = "ppojob-controller"
REQUEST_SECONDS: Final = 10.0
TAKEN_OVER: Final = "has taken over"
"""Part of the message of the chart's admission policy for a decreased attempt."""

_ATTEMPTS: Final = 3


class NotWrittenError(Exception):
    """The state was not written; a retry may succeed."""


class RefusedError(NotWrittenError):
    """The API server refused the request; a retry is useless."""


class DisownedError(Exception):
    """The job is gone, was replaced, or has a newer controller: stop writing."""


class _ConflictError(Exception):
    """The job has changed since its version was read."""


class _Metadata(msgspec.Struct):
    uid: str
    version: str = msgspec.field(name="resourceVersion")


class _Job(msgspec.Struct):
    metadata: _Metadata


@dataclass
class JobResource:
    """Writes the status of one PPOJob, with this uid; `seconds` is the request timeout."""

    access: ApiAccess
    _: KW_ONLY
    namespace: str
    name: str
    uid: str
    seconds: float = REQUEST_SECONDS
    _version: str = ""

    def write(self, training: TrainingStatus) -> None:
        """Write `status.training`, overwriting other field managers.

        NotWrittenError if the request failed; DisownedError if the job has another controller.
        """
        for _ in range(_ATTEMPTS):
            try:
                # The resource version is the fence: the API server does not check the uid.
                if not self._version:  # a dry run needs no permission to read
                    found = self._apply(training)
                    if found.uid != self.uid:
                        raise DisownedError(f"it is another job now, of uid {found.uid}")
                    self._version = found.version
                self._version = self._apply(training, self._version).version
            except _ConflictError:
                self._version = ""
            else:
                return
        raise NotWrittenError(f"others have written {_ATTEMPTS} times meanwhile")

    def _apply(self, training: TrainingStatus, version: str = "") -> _Metadata:
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        metadata = {"namespace": self.namespace, "name": self.name}
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
        api = f"/apis/{GROUP}/{VERSION}"
        return self._exchange(
            path_of(api, self.namespace, PLURAL, self.name, "status", **query), body
        )

    def _exchange(self, path: str, body: dict[str, Any]) -> _Metadata:
        try:
            status, text = self.access.request(
                HTTPMethod.PATCH,
                path,
                body,
                content_type="application/apply-patch+yaml",
                agent=FIELD_MANAGER,
                seconds=self.seconds,
            )
            if status == http.HTTPStatus.OK:
                return msgspec.json.decode(text, type=_Job).metadata
        except (OSError, http.client.HTTPException, msgspec.MsgspecError) as problem:
            raise NotWrittenError(f"{type(problem).__name__}: {problem}") from problem
        raise self._refusal(status, refusal(text))

    def _refusal(self, status: int, body: Status) -> Exception:
        if status == http.HTTPStatus.CONFLICT:
            return _ConflictError(body.message)
        # A starting API server may not serve the kind yet: that is a 404 without a name.
        is_gone = status == http.HTTPStatus.NOT_FOUND and body.details.name == self.name
        if is_gone or (status == http.HTTPStatus.FORBIDDEN and TAKEN_OVER in body.message):
            return DisownedError(body.message)
        why = f"HTTP {status}: {body.message}"
        if status >= 500 or status == http.HTTPStatus.TOO_MANY_REQUESTS:
            return NotWrittenError(why)
        return RefusedError(why)


FINAL_SECONDS: Final = 20.0
"""Time limit of sending the last state."""


class StatusWriter:
    """Sends states by `write` (see `JobResource.write`) from a thread, started at once.

    Attempts with states of one stage are `interval` seconds apart; `final_interval` in `close`.
    """

    def __init__(
        self,
        write: Callable[[TrainingStatus], None],
        interval: float = 10.0,
        final_interval: float = 0.5,
    ) -> None:
        self._write = write
        self._interval, self._final_interval = interval, final_interval
        self._changed = threading.Condition()
        self._newest: TrainingStatus | None = None
        self._tried: TrainingStatus | None = None
        self._sent: TrainingStatus | None = None
        self._tried_at = float("-inf")
        self._has_failed = False
        self._is_disowned = False
        self._deadline: float | None = None
        self._thread = threading.Thread(target=self._run, name="status-writer", daemon=True)
        self._thread.start()

    def submit(self, state: TrainingStatus) -> None:
        """Queue a state, which replaces an unsent one, without blocking."""
        with self._changed:
            self._newest = state
            self._changed.notify()

    def close(self, seconds: float = FINAL_SECONDS) -> None:
        """Send the last state and end, at the latest after `seconds`, or when it is refused."""
        with self._changed:
            self._deadline = time.monotonic() + seconds
            self._interval, self._tried_at = self._final_interval, float("-inf")
            self._changed.notify()
        self._thread.join(seconds)
        if self._newest != self._sent and not self._is_disowned:
            _log.warning("status.training: the last state was not written")

    def _run(self) -> None:
        try:
            while (state := self._next()) is not None:
                self._send(state)
        except DisownedError as problem:
            self._is_disowned = True
            _log.warning("status.training is not written any more: %s", problem)

    def _next(self) -> TrainingStatus | None:
        """Wait until the newest state is due and return it; None at the end."""
        with self._changed:
            while True:
                now, is_new = time.monotonic(), self._newest != self._sent
                if self._deadline is not None and (not is_new or now >= self._deadline):
                    return None
                left = self._due_at() - now if is_new else threading.TIMEOUT_MAX
                if left <= 0.0:
                    self._tried, self._tried_at = self._newest, now
                    return self._newest
                end = threading.TIMEOUT_MAX if self._deadline is None else self._deadline - now
                self._changed.wait(min(left, end, threading.TIMEOUT_MAX))

    def _due_at(self) -> float:
        newest, last = self._newest, self._tried
        if newest and last and (newest.attempt, newest.stage) == (last.attempt, last.stage):
            return self._tried_at + self._interval
        return float("-inf")

    def _send(self, state: TrainingStatus) -> None:
        try:
            self._write(state)
        except NotWrittenError as problem:
            if not self._has_failed:
                _log.warning("status.training was not written, the training continues: %s", problem)
            self._has_failed = True
            if isinstance(problem, RefusedError) and self._deadline is not None:
                self._deadline = time.monotonic()
            return
        if self._has_failed:
            _log.info("status.training is written again")
        self._has_failed = False
        self._sent = state
