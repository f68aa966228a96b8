"""The job's own PPOJob at the API server: the one thing that its controller may write.

A client of one request, server-side apply of `status.training`, by the standard library: a
connection a request, so that none is ever found dead, and none sticks to one of several servers.
docs/adr/0010 says how a job is told from an earlier one of the same name.
"""

import http.client
import json
import ssl
import urllib.parse
from typing import Any, Final

import msgspec

from ppojob_api.v1alpha1.status import TrainingStatus
from ppojob_api.well_known import API_VERSION, GROUP, KIND, PLURAL, VERSION
from ppojob_trainer.pod_environment import ApiAccess

FIELD_MANAGER: Final = "ppojob-controller"
REQUEST_SECONDS: Final = 10.0
TAKEN_OVER: Final = "has taken over"
"""What the chart's admission policy says of an epoch that has fallen."""

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
    """The API server said no: if asked again soon it will say the same."""


class DisownedError(Exception):
    """The job is gone, is another one, or has another controller: there is no more to write."""


class _ConflictError(Exception):
    """Somebody else has written to the job since it was seen."""


class _Metadata(msgspec.Struct):
    uid: str
    version: str = msgspec.field(name="resourceVersion")


class _Job(msgspec.Struct):
    """What of a PPOJob is looked at."""

    metadata: _Metadata


class _Details(msgspec.Struct):
    name: str = ""


class _Refusal(msgspec.Struct):
    """What of a `Status` of the API server is looked at."""

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
        """Make this `status.training`, even if another controller wrote it before.

        Raises:
            NotWrittenError: it could not be written now.
            DisownedError: it is not this controller's to write any more.
        """
        for _ in range(_ATTEMPTS):
            try:
                # The version is the fence: the API server checks no uid where it writes a status.
                self._version = self._version or self._current_version(training)
                self._version = self._apply(training, self._version).version
            except _ConflictError:
                self._version = ""
            else:
                return
        raise NotWrittenError(f"others have written {_ATTEMPTS} times meanwhile")

    def _current_version(self, training: TrainingStatus) -> str:
        """The job's version, read off a write that is only tried: this needs no right to read."""
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
        """What an answer other than 200 means."""
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
