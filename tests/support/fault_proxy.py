"""A proxy before a real API server: counts what is asked, and does to it what servers do at times.

It speaks plain HTTP on this machine alone and carries the rights of the kubeconfig behind it, so an
operator is pointed at it by a kubeconfig of its own. One proxy a replica tells who wrote what.
"""

import asyncio
import contextlib
import json
import random
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import aiohttp
from aiohttp import web
from fake_api_server import kubeconfig

from ppojob_operator.connection import from_kubeconfig

Verb = Literal["get", "list", "watch", "create", "update", "patch", "delete"]
_VERBS: dict[str, Verb] = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_LINE_BYTES = 4 << 20
_READING = frozenset({"get", "list", "watch"})
_HOP = frozenset({"host", "connection", "transfer-encoding", "content-length", "accept-encoding"})


@dataclass(frozen=True)
class Asked:
    """What a request is about; `plural` as in paths, with the subresource behind a slash."""

    verb: Verb
    plural: str

    @property
    def is_write(self) -> bool:
        """Whether it changes a job or what belongs to one: the Lease is each replica's own."""
        return self.verb not in _READING and self.plural != "leases"


@dataclass(frozen=True)
class Faults:
    """What goes wrong, each with its share of all occasions; none by default."""

    # Answered in place of the API server's; 409 to writes, 410 to lists and watches.
    statuses: tuple[int, ...] = ()
    share: float = 0.0  # of the requests
    # Sent into a watch in place of an event; 0 cuts it off.
    stream_errors: tuple[int, ...] = ()
    stream_share: float = 0.0  # of the events
    delay_seconds: float = 0.0  # before a request goes on


@dataclass(frozen=True)
class ProcessFault:
    """What happens to the asking process at one of its writes; no later request of it goes on."""

    at: int  # number of the write, from 1; what the API server does not take is none
    behind: bool  # whether the write is carried out first; its answer is not given
    action: Callable[[], None]  # kills or stops the process


class FaultProxy:
    """A context: `behind` is the API server's kubeconfig, `folder` takes the one of the proxy."""

    def __init__(self, behind: Path, folder: Path) -> None:
        self.folder = folder
        self.counts: Counter[Asked] = Counter()
        self.faults = Faults()  # what goes wrong from now on
        self.injected = 0  # how often something did
        self.taken = 0  # writes that the API server has taken so far, the Lease's aside
        self._place = from_kubeconfig(behind)
        self._dice = random.Random(0)
        self._process_fault: ProcessFault | None = None
        self._done = 0
        self._has_failed = threading.Event()
        self._streams = self._deaf_streams = 0
        self._sockets: list[socket.socket] = []
        self._turn = asyncio.Lock()
        self._end = asyncio.Event()
        self._is_up = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> "FaultProxy":
        self._thread.start()
        assert self._is_up.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(60)

    def fail_process(self, fault: ProcessFault | None) -> None:
        """Inject a fault into the process that asks from now on; None: none."""
        self._done = 0
        self._process_fault = fault
        self._has_failed.clear()

    def has_failed(self, seconds: float = 0.0) -> bool:
        """Whether the fault was injected, after waiting for it so long."""
        return self._has_failed.wait(seconds)

    def deafen(self) -> None:
        """Let nothing come of any watch that is open now, nor end it."""
        self._deaf_streams = self._streams

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        runner = web.ServerRunner(web.Server(self._handle), shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        (self.folder / "kubeconfig").write_text(kubeconfig(f"http://{host}:{port}", {}))
        token = self._place.token()
        async with aiohttp.ClientSession(
            self._place.server,
            connector=aiohttp.TCPConnector(
                limit=0, ssl=self._place.ssl or True, socket_factory=self._socket
            ),
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
            read_bufsize=_LINE_BYTES,
        ) as self._session:
            self._is_up.set()
            await self._end.wait()
            await runner.cleanup()
        # TLS says farewell behind the session's back, and a socket must not outlive the loop.
        while any(one.fileno() >= 0 for one in self._sockets):
            await asyncio.sleep(0.02)

    def _socket(self, address: aiohttp.AddrInfoType) -> socket.socket:
        family, kind, protocol, _, _ = address
        self._sockets.append(socket.socket(family, kind, protocol))
        return self._sockets[-1]

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        asked = _asked(request)
        if self._has_failed.is_set():
            # Of a process that is gone nothing goes on, though it may be on the wire already.
            return _dropped(request)
        self.counts[asked] += 1
        if self._process_fault is not None and asked.is_write:
            return await self._counted_write(request, self._process_fault)
        status = self._status(asked)
        # An answer that is lost after the write is worse than a write that is not done.
        if status is not None and (status != 500 or self._dice.random() < 0.5):
            return _refusal(status)
        await asyncio.sleep(self.faults.delay_seconds)
        if asked.verb == "watch":
            return await self._stream(request)
        answer = await self._forwarded(request)
        return answer if status is None else _refusal(status)

    async def _counted_write(
        self, request: web.BaseRequest, fault: ProcessFault
    ) -> web.StreamResponse:
        """A write of a process with a fault: one at a time, so that one is the n-th."""
        async with self._turn:
            if self._has_failed.is_set():
                return _dropped(request)
            if not fault.behind and self._done == fault.at - 1:
                return self._fail(request, fault)
            answer = await self._forwarded(request)
            self._done += answer.status < 400
            if fault.behind and self._done == fault.at:
                return self._fail(request, fault)
            return answer

    def _fail(self, request: web.BaseRequest, fault: ProcessFault) -> web.StreamResponse:
        fault.action()
        self._has_failed.set()
        return _dropped(request)

    def _status(self, asked: Asked) -> int | None:
        """The status that is answered instead, if any."""
        apt = [
            status
            for status in self.faults.statuses
            if (status != 409 or asked.is_write)
            and (status != 410 or asked.verb in {"list", "watch"})
        ]
        if not apt or self._dice.random() >= self.faults.share:
            return None
        self.injected += 1
        return self._dice.choice(apt)

    async def _forwarded(self, request: web.BaseRequest) -> web.Response:
        async with self._ask(request) as answer:
            self.taken += _asked(request).is_write and answer.status < 400
            headers = {k: v for k, v in answer.headers.items() if k.lower() not in _HOP}
            return web.Response(status=answer.status, body=await answer.read(), headers=headers)

    @contextlib.asynccontextmanager
    async def _ask(self, request: web.BaseRequest) -> AsyncIterator[aiohttp.ClientResponse]:
        async with self._session.request(
            request.method,
            request.path_qs,
            data=await request.read() or None,
            headers={k: v for k, v in request.headers.items() if k.lower() not in _HOP},
        ) as answer:
            yield answer

    async def _stream(self, request: web.BaseRequest) -> web.StreamResponse:
        self._streams += 1
        number = self._streams
        async with self._ask(request) as answer:
            response = web.StreamResponse(status=answer.status)
            response.content_type = "application/json"
            await response.prepare(request)
            async for line in answer.content:
                while number <= self._deaf_streams:
                    await asyncio.sleep(3600)
                code = self._stream_error()
                if code is not None:
                    if code:
                        event = {"type": "ERROR", "object": _status_object(code)}
                        await response.write(json.dumps(event).encode() + b"\n")
                    return _dropped(request)
                await response.write(line)
            return response

    def _stream_error(self) -> int | None:
        faults = self.faults
        if not faults.stream_errors or self._dice.random() >= faults.stream_share:
            return None
        self.injected += 1
        return self._dice.choice(faults.stream_errors)


def _dropped(request: web.BaseRequest) -> web.StreamResponse:
    """No answer at all."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)


def _asked(request: web.BaseRequest) -> Asked:
    """What a request is about, by its path: [/api/v1 | /apis/GROUP/VERSION] and so on."""
    parts = request.path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    if len(parts) > 2 and parts[0] == "namespaces":
        parts = parts[2:]
    plural = "/".join(parts[::2]) if parts else "discovery"
    if request.method != "GET":
        return Asked(_VERBS[request.method], plural)
    if "watch" in request.query:
        return Asked("watch", plural)
    return Asked("get" if len(parts) > 1 else "list", plural)


def _status_object(code: int) -> dict[str, object]:
    words = {409: "Conflict", 410: "Expired", 429: "TooManyRequests", 500: "InternalError"}
    return {
        "apiVersion": "v1",
        "kind": "Status",
        "status": "Failure",
        "code": code,
        "reason": words[code],
        "message": f"injected: {code}",
    }


def _refusal(code: int) -> web.Response:
    headers = {"Retry-After": "1"} if code == 429 else {}
    return web.json_response(_status_object(code), status=code, headers=headers)
