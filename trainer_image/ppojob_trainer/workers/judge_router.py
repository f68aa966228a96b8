"""Judge router: a local HTTP endpoint for reward functions, in front of all judge servers.

A request goes to the server that its digest selects: the same one for every repetition, from any
pod. While that server is being restarted, the request waits here.
"""

import hashlib
import logging
import socket
import time
from collections.abc import Sequence
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from typing import Final, NamedTuple

from ppojob_trainer.metrics.page_server import PageHandler, PageServer
from ppojob_trainer.workers import sglang_form

_log = logging.getLogger(__name__)
_CONNECT_SECONDS: Final = 10.0
_WAIT_SECONDS: Final = 0.5
_LARGEST_REQUEST: Final = 64 * 1024**2
_DYING: Final = 3
"""Retries after a status of 500 and above.

A server that has lost its engine answers so once more before it ends.
"""
_FIRST_BAD_STATUS: Final = 500
_KEEP_ALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
"""TCP keepalive: an answer may take long, but a dead machine is noticed."""


class _Answer(NamedTuple):
    body: bytes
    kind: str
    status: int


def server_of(path: str, body: bytes, count: int) -> int:
    """Return the server of a request."""
    digest = hashlib.sha256(path.encode() + b"\n" + body).digest()
    return int.from_bytes(digest[:8], "big") % count


class JudgeRouter(PageServer):
    """A server on a free local port that forwards requests to the judge servers.

    Args:
        servers: host and port of each.
        model: its name there, which SGLang's `/generate` does not ask for.
        patience: seconds for which a request waits for a server that does not answer.
    """

    request_queue_size = 1_024  # functions may send requests for all of their rows at once

    def __init__(self, servers: Sequence[tuple[str, int]], *, model: str, patience: float) -> None:
        super().__init__("127.0.0.1", 0, _Handler)
        self._servers, self._model, self._patience = servers, model, patience

    def passed_on(self, method: str, path: str, body: bytes) -> _Answer:
        """Forward a request to its server, and return the answer."""
        if path == sglang_form.PATH:
            return self._generated(body)
        server = self._servers[server_of(path, body, len(self._servers))]
        return _asked(server, method, path, body, self._patience)

    def _generated(self, body: bytes) -> _Answer:
        try:
            asked = sglang_form.as_completion(body, self._model)
        except sglang_form.NotThere as problem:
            return _Answer(str(problem).encode(), "text/plain", HTTPStatus.BAD_REQUEST)
        answer = self.passed_on("POST", sglang_form.COMPLETIONS, asked)
        if answer.status != HTTPStatus.OK:
            return answer
        return answer._replace(body=sglang_form.as_generated(answer.body))


class _Handler(PageHandler):
    server: JudgeRouter

    def do_GET(self) -> None:
        self.answer(*self.server.passed_on("GET", self.path, b""))

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > _LARGEST_REQUEST:
            self.send_error(HTTPStatus.LENGTH_REQUIRED)
            return
        self.answer(*self.server.passed_on("POST", self.path, self.rfile.read(int(length))))


def _asked(
    server: tuple[str, int], method: str, path: str, body: bytes, patience: float
) -> _Answer:
    """Return the server's answer, after a restart if needed; 503 if it never answers."""
    bad, deadline = 0, None
    while True:
        try:
            answer = _asked_once(server, method, path, body)
        except (OSError, HTTPException) as problem:
            deadline = deadline or time.monotonic() + patience
            if time.monotonic() > deadline:
                why = f"the judge at {server[0]}:{server[1]} gives no answer: {problem!r}"
                _log.warning("%s", why)
                return _Answer(why.encode(), "text/plain", HTTPStatus.SERVICE_UNAVAILABLE)
        else:
            bad, deadline = bad + 1, None
            if answer.status < _FIRST_BAD_STATUS or bad > _DYING:
                return answer
        time.sleep(_WAIT_SECONDS)


def _asked_once(server: tuple[str, int], method: str, path: str, body: bytes) -> _Answer:
    connection = HTTPConnection(*server, timeout=_CONNECT_SECONDS)
    try:
        connection.connect()
        for option in _KEEP_ALIVE:
            connection.sock.setsockopt(*option)
        connection.sock.settimeout(None)
        connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        kind = answer.headers.get("Content-Type", "application/json")
        return _Answer(answer.read(), kind, answer.status)
    finally:
        connection.close()
