"""Kubernetes API client with one connection pool."""

import asyncio
import copy
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import aiohttp

from ppojob_operator.connection import Connection
from ppojob_operator.errors import ClusterError, UnavailableError, error_of, message_of
from ppojob_operator.kinds import GANG_KINDS, KINDS, Kind, kind_of
from ppojob_operator.metrics import API_REQUESTS, API_SECONDS
from ppojob_operator.state import Manifest

FIELD_MANAGER = "ppojob-operator"
PAGE_SIZE = 500
_AT_ONCE = 64
"""Limit of concurrent requests, without watches."""
_REQUEST_SECONDS = 15.0
_WATCH_SECONDS = 300
_LINE_BYTES = 4 << 20
_APPLY = "application/apply-patch+yaml"
_JSON = "application/json"
_METHODS = {"create": "POST", "patch": "PATCH", "update": "PUT", "delete": "DELETE"}


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a list; after the last page a watch continues from the resource version."""

    items: tuple[Manifest, ...]
    resource_version: str


@dataclass(frozen=True, slots=True)
class Change:
    """One event of a watch; `BOOKMARK` has no object, only a resource version."""

    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
    manifest: Manifest


class Cluster:
    """Client of an API server; use as an async context manager.

    Every method raises a `ClusterError`; see `errors` for its subclasses.

    Args:
        stall_seconds: a watch without events for this long is closed. Bookmarks come every
            minute, so silence means a dead connection.
    """

    def __init__(self, connection: Connection, *, stall_seconds: float = 80.0) -> None:
        self._connection = connection
        self._stall_seconds = stall_seconds
        self._session: aiohttp.ClientSession | None = None
        self._check: Callable[[], None] = lambda: None

    async def __aenter__(self) -> "Cluster":
        """Open the pool."""
        connector = aiohttp.TCPConnector(
            limit=_AT_ONCE + len(KINDS) + len(GANG_KINDS), ssl=self._connection.ssl or True
        )
        self._session = aiohttp.ClientSession(
            self._connection.server, connector=connector, read_bufsize=_LINE_BYTES
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the pool."""
        if self._session is not None:
            await self._session.close()

    def fenced(self, check: Callable[[], None]) -> "Cluster":
        """Return a client that calls `check` before each write, which raises unless it leads."""
        fenced = copy.copy(self)
        fenced._check = check
        return fenced

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest:
        """Read one object."""
        return await self._request("get", kind, kind.path(namespace, name))

    async def create(self, manifest: Manifest) -> Manifest:
        """Create an object that must not exist yet; existing objects are never adopted.

        Raises:
            ConflictError: the name exists.
        """
        return await self._write("create", manifest)

    async def apply(self, manifest: Manifest, uid: str) -> Manifest:
        """Server-side apply, forced, to the object with this uid.

        Raises:
            ConflictError: the name now belongs to another object.
        """
        metadata = {**manifest["metadata"], "uid": uid}
        return await self._write("patch", {**manifest, "metadata": metadata})

    async def apply_status(self, manifest: Manifest) -> Manifest:
        """Server-side apply of a status, conditional on the metadata's resource version and uid."""
        return await self._write("patch", manifest, "/status")

    async def replace(self, manifest: Manifest, subresource: str = "") -> Manifest:
        """Replace an object, or its `/status`, conditional on `metadata.resourceVersion`."""
        return await self._write("update", manifest, subresource)

    async def delete(
        self, kind: Kind, namespace: str, name: str, uid: str, grace_seconds: int | None = None
    ) -> None:
        """Delete the object with this uid, and its dependents in the background."""
        options: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid},
            "propagationPolicy": "Background",
        }
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        await self._request("delete", kind, kind.path(namespace, name), body=options)

    async def pages(
        self, kind: Kind, namespace: str, selector: str, fields: str = ""
    ) -> AsyncIterator[Page]:
        """List objects page by page; an empty namespace means all, an empty selector every."""
        # A list names the kind once for all its items.
        head = {"kind": kind.name, "apiVersion": kind.api_version}
        query = {"limit": str(PAGE_SIZE), **_selected(selector)}
        query |= {"fieldSelector": fields} if fields else {}
        while True:
            answer = await self._request("list", kind, kind.path(namespace), query=query)
            metadata = answer["metadata"]
            items = tuple({**item, **head} for item in answer.get("items") or ())
            yield Page(items, metadata["resourceVersion"])
            if not metadata.get("continue"):
                return
            query["continue"] = metadata["continue"]

    async def watch(
        self, kind: Kind, namespace: str, selector: str, resource_version: str
    ) -> AsyncIterator[Change]:
        """Watch objects; ends when the API server closes the stream.

        Raises:
            ExpiredError: the resource version is too old.
        """
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(_WATCH_SECONDS),
            **_selected(selector),
        }
        limits = aiohttp.ClientTimeout(
            total=None, sock_connect=_REQUEST_SECONDS, sock_read=self._stall_seconds
        )
        API_REQUESTS.labels("watch", kind.name, "200").inc()
        try:
            async with self._open.get(
                kind.path(namespace), params=query, headers=self._headers(), timeout=limits
            ) as answer:
                if answer.status >= 400:
                    raise await _error(answer)
                async for line in answer.content:
                    yield _change(line)
        except (aiohttp.ClientError, TimeoutError, ValueError) as problem:
            raise UnavailableError(f"watch of {kind.plural}: {problem!r}") from problem

    @property
    def _open(self) -> aiohttp.ClientSession:
        assert self._session is not None, "use as an async context manager"
        return self._session

    def _headers(self) -> dict[str, str]:
        token = self._connection.token()
        return {"Authorization": f"Bearer {token}"} if token else {}

    async def _write(self, verb: str, manifest: Manifest, subresource: str = "") -> Manifest:
        kind, metadata = kind_of(manifest), manifest["metadata"]
        query = {"fieldManager": FIELD_MANAGER} | ({"force": "true"} if verb == "patch" else {})
        name = None if verb == "create" else metadata["name"]
        path = kind.path(metadata["namespace"], name) + subresource
        return await self._request(verb, kind, path, query=query, body=manifest)

    async def _request(
        self,
        verb: str,
        kind: Kind,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Manifest | None = None,
    ) -> Manifest:
        method, content_type = _METHODS.get(verb, "GET"), _APPLY if verb == "patch" else _JSON
        if method != "GET":
            self._check()
        started, code = time.monotonic(), "none"
        try:
            async with self._open.request(
                method,
                path,
                params=query,
                data=None if body is None else json.dumps(body).encode(),
                headers=self._headers() | {"Content-Type": content_type, "Accept": _JSON},
                timeout=aiohttp.ClientTimeout(total=_REQUEST_SECONDS),
            ) as answer:
                code = str(answer.status)
                if answer.status >= 400:
                    raise await _error(answer)
                read: dict[str, Any] = await answer.json(loads=json.loads)
                return read
        except (aiohttp.ClientError, TimeoutError, asyncio.IncompleteReadError) as problem:
            raise UnavailableError(f"{verb} {path}: {problem!r}") from problem
        finally:
            API_REQUESTS.labels(verb, kind.name, code).inc()
            API_SECONDS.labels(verb).observe(time.monotonic() - started)


def _selected(selector: str) -> dict[str, str]:
    return {"labelSelector": selector} if selector else {}


def _change(line: bytes) -> Change:
    event = json.loads(line)
    if event["type"] == "ERROR":
        status = event["object"]
        raise error_of(int(status.get("code") or 500), str(status.get("message", "")))
    return Change(event["type"], event["object"])


async def _error(answer: aiohttp.ClientResponse) -> ClusterError:
    wait = answer.headers.get("Retry-After", "")
    retry_after = float(wait) if wait.isdecimal() else None
    return error_of(answer.status, message_of(await answer.text()), retry_after)
