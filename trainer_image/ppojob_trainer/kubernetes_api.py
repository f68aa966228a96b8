"""Requests of a pod to the Kubernetes API server, with the token of its ServiceAccount."""

import http.client
import json
import ssl
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from http import HTTPMethod
from pathlib import Path
from typing import Any, Final

import msgspec

JSON: Final = "application/json"
_ANSWER_BYTES: Final = 4 << 20
_WHY_CHARACTERS: Final = 500


class _Details(msgspec.Struct):
    name: str = ""


class Status(msgspec.Struct):
    """Why the API server refused a request: its `Status`; `message` is its text if it is none."""

    message: str = ""
    details: _Details = field(default_factory=_Details)


@dataclass(frozen=True)
class ApiAccess:
    """How a pod reaches the API server of its cluster.

    Attributes:
        credentials: folder with `token`, which the kubelet renews, and `ca.crt`.
    """

    host: str
    port: int
    credentials: Path

    def request(
        self,
        method: HTTPMethod,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        content_type: str = JSON,
        agent: str,
        seconds: float,
    ) -> tuple[int, bytes]:
        """Make one request, with a connection of its own; return the status and the answer.

        Raises OSError or HTTPException if there is no answer.
        """
        connection = http.client.HTTPSConnection(
            self.host, self.port, timeout=seconds, context=self.trusted()
        )
        try:
            headers = {**self.authorization(), "Accept": JSON, "User-Agent": agent}
            if body is not None:
                headers["Content-Type"] = content_type
            text = json.dumps(body) if body is not None else None
            connection.request(method, path, text, headers)
            answer = connection.getresponse()
            return answer.status, answer.read(_ANSWER_BYTES)
        finally:
            connection.close()

    def authorization(self) -> dict[str, str]:
        """Return the header with the token."""
        token = (self.credentials / "token").read_text().strip()
        return {"Authorization": f"Bearer {token}"}

    def trusted(self) -> ssl.SSLContext:
        """Return the TLS settings that trust the cluster's authority."""
        file = self.credentials / "ca.crt"
        return _trusting(file, file.stat().st_mtime)


@lru_cache(maxsize=1)
def _trusting(file: Path, _changed: float) -> ssl.SSLContext:
    trusted = ssl.create_default_context(cafile=str(file))
    # As kubectl does: since Python 3.13 the authorities of many clusters would be refused.
    trusted.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return trusted


def path_of(api: str, namespace: str, plural: str, *names: str, **query: str) -> str:
    """Return the path of a namespaced object, with a subresource if `names` has two."""
    parts = map(urllib.parse.quote, (namespace, plural, *names))
    path = "/".join((api, "namespaces", *parts))
    return f"{path}?{urllib.parse.urlencode(query)}" if query else path


def refusal(answer: bytes) -> Status:
    """Read the answer to a refused request."""
    try:
        return msgspec.json.decode(answer, type=Status)
    except msgspec.MsgspecError:
        return Status(answer[:_WHY_CHARACTERS].decode(errors="replace"))
