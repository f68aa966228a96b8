"""RPC server: one thread handles the network, the main thread does the work.

So a rank answers queries while its engine generates. The main thread sends its answers itself,
which saves a thread switch; both threads share the socket under a lock. A message is checked in
this order: key (by CURVE), method, caller's role, size, attempts of controller and role, schema.
"""

import hashlib
import logging
import os
import queue
import select
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import msgspec
import zmq
from zmq.auth.thread import ThreadAuthenticator

from ppojob_trainer import failpoints
from ppojob_trainer.errors import ChannelLost, CustomCodeFailed, GenerationAborted, StorageError
from ppojob_trainer.rpc.keys import KeyRing
from ppojob_trainer.rpc.methods import ANSWER_POINTS, CONTROLLER, Method
from ppojob_trainer.rpc.wire import (
    AnswerHeader,
    ErrorKind,
    Failure,
    Nothing,
    RequestHeader,
    RequestId,
    encode,
)

_log = logging.getLogger(__name__)
_KINDS = {ChannelLost: ErrorKind.CHANNEL_LOST, StorageError: ErrorKind.STORAGE}
"""Exceptions that the caller distinguishes."""
_EXPECTED = {CustomCodeFailed: ErrorKind.CUSTOM_CODE, GenerationAborted: ErrorKind.ABORTED}
"""Exceptions that are not logged here."""
_MALFORMED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Exceptions of the decoder for malformed bytes."""
_HEADER = msgspec.msgpack.Decoder(RequestHeader)
_HEADER_LIMIT = 4096
_READABLE = int(zmq.POLLIN)
Outcome = msgspec.Struct | Future[Any] | None
"""Of a handler: its answer; None for `Nothing`."""
Handler = Callable[[Any], Outcome]


@dataclass(frozen=True)
class Route:
    """A method and its handler; the handler of a query must not block.

    A handler of work may return a future, so that the main thread can do other work.
    """

    method: Method[Any, Any]
    handler: Handler


@dataclass(frozen=True, slots=True)
class _Work:
    route: Route
    request_id: RequestId
    run: Callable[[], Outcome]


class _Refusal(Exception):  # noqa: N818
    def __init__(self, message: str, kind: ErrorKind = ErrorKind.BAD_REQUEST) -> None:
        super().__init__(message)
        self.failure = Failure(kind, message)


@dataclass(slots=True)
class _Entry:
    """One request for work."""

    method: str
    digest: bytes  # digest of method and body
    # (connection, call number) of each caller
    waiting: list[tuple[bytes, int]] = field(default_factory=list)
    answer: bytes | None = None  # encoded answer; None while the work is in progress


class _AnswerStore:
    """Cache of the answers of this step and the last by request id (idempotency).

    A restarted controller, or one that lost a connection, retries with the same id. Finished work
    is answered from the cache; a retry of work in progress waits for it.
    """

    def __init__(self) -> None:
        self._entries: dict[RequestId, _Entry] = {}
        self._oldest = (0, 0)  # rewinds and step

    def register(
        self, request: RequestId, method: str, body: memoryview, waiter: tuple[bytes, int]
    ) -> tuple[_Entry, bool]:
        """Register a request; return its entry, and whether the work is new.

        _Refusal if the id is known with another method or body.
        """
        hashed = hashlib.blake2b(method.encode() + b"\0", digest_size=16)
        hashed.update(body)
        digest = hashed.digest()
        entry = self._entries.get(request)
        if entry is None:
            self._evict_before(request.rewinds, request.step - 1)
            entry = self._entries[request] = _Entry(method, digest, [waiter])
            return entry, True
        if entry.digest != digest:
            raise _Refusal(
                f"{request.stage} of step {request.step} was repeated with another content, as if "
                "a reward function had returned something else",
                ErrorKind.CHANGED,
            )
        if entry.answer is None and waiter not in entry.waiting:
            entry.waiting.append(waiter)
        return entry, False

    def finish(self, request: RequestId, answer: bytes, *, is_error: bool) -> _Entry:
        """Store the answer of finished work; errors are not cached."""
        entry = self._entries[request]
        entry.answer = answer
        if is_error:
            del self._entries[request]
        return entry

    def _evict_before(self, rewinds: int, step: int) -> None:
        if (rewinds, step) <= self._oldest:
            return
        self._oldest = (rewinds, step)
        self._entries = {
            id_: entry
            for id_, entry in self._entries.items()
            if (id_.rewinds, id_.step) >= self._oldest or not entry.answer
        }


class RpcServer:
    """Serves the methods of one process.

    Args:
        keys: key ring; all its roles may connect, and each method has its allowed callers.
        attempt: attempt of the role, for fencing; None for supervisors, which outlive attempts.

    Raises:
        zmq.ZMQError: the address cannot be bound.
    """

    def __init__(
        self, address: str, port: int, keys: KeyRing, routes: list[Route], attempt: int | None
    ) -> None:
        self._keys = keys
        self._routes = {route.method.name: route for route in routes}
        self._decoders = {
            route.method.name: msgspec.msgpack.Decoder(route.method.request) for route in routes
        }
        self._attempt = attempt
        self._seen_controller_attempt = 0
        self._answers = _AnswerStore()
        self._work: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._context = zmq.Context()
        self._authenticator = ThreadAuthenticator(self._context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback("*", credentials_provider=self)
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.curve_server = True
        self._socket.curve_secretkey = keys.secret
        self._socket.maxmsgsize = (
            max((route.method.limit_bytes for route in routes), default=0) + _HEADER_LIMIT
        )
        self._socket.linger = 200
        self._socket.bind(f"tcp://{address}:{port}")
        # Protects the socket; its descriptor may be polled without the lock.
        self._socket_lock = threading.Lock()
        self._stop_out, self._stop_in = os.pipe()
        self._thread = threading.Thread(target=self._listen, name="rpc", daemon=True)

    def callback(self, _domain: str, key: bytes) -> bool:
        """Whether a public key may connect; called by the authenticator."""
        return self._keys.role_of(key) is not None

    def start(self) -> None:
        self._thread.start()

    def work(
        self, watch: Callable[[RequestId], AbstractContextManager[None]] = lambda _: nullcontext()
    ) -> None:
        """Do work on the calling thread until `close`; `watch` wraps each piece of work."""
        while (item := self._work.get()) is not None:
            with watch(item.request_id):
                outcome = self._outcome(item.route, item.run)
            if isinstance(outcome, Future):  # queue the work again when it is done
                outcome.add_done_callback(partial(self._requeue, item))
                continue
            answer, is_error = outcome
            with self._socket_lock:
                if self._socket.closed:
                    return
                self._deliver(item.request_id, answer, is_error=is_error)
                self._receive_all()

    def close(self) -> None:
        """Stop `work` and the network thread; call it once, from any thread."""
        self._work.put(None)
        os.write(self._stop_in, b"\0")
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        with self._socket_lock:
            self._socket.close()
        self._authenticator.stop()
        self._context.term()
        os.close(self._stop_in)
        os.close(self._stop_out)

    def _requeue(self, item: _Work, outcome: Future[Any]) -> None:
        self._work.put(replace(item, run=outcome.result))

    def _outcome(
        self, route: Route, run: Callable[[], Outcome]
    ) -> tuple[bytes, bool] | Future[Any]:
        """Return an encoded answer and whether it is an error, or the future of an answer."""
        try:
            outcome = run()
            if isinstance(outcome, Future):
                return outcome
            return encode(Nothing() if outcome is None else outcome), False
        except (CustomCodeFailed, GenerationAborted) as problem:
            return encode(Failure(_EXPECTED[type(problem)], str(problem))), True
        except Exception as problem:
            _log.exception("%s failed", route.method.name)
            message = f"{type(problem).__name__}: {problem}"
            kind = next((k for e, k in _KINDS.items() if isinstance(problem, e)), ErrorKind.FAILED)
            return encode(Failure(kind, message, traceback.format_exc())), True

    def _listen(self) -> None:
        poller = select.poll()
        poller.register(self._socket.fileno(), select.POLLIN)
        poller.register(self._stop_out, select.POLLIN)
        while True:
            with self._socket_lock:
                self._receive_all()
            if any(ready == self._stop_out for ready, _ in poller.poll()):
                return

    def _receive_all(self) -> None:
        """Receive the available messages: answer the queries, and queue the work.

        The descriptor is edge-triggered, and any use of the socket may consume the signal, so both
        threads call this before they release the lock.
        """
        while int(self._socket.getsockopt(zmq.EVENTS)) & _READABLE:
            if (item := self._receive()) is not None:
                self._work.put(item)

    def _deliver(self, request_id: RequestId, answer: bytes, *, is_error: bool) -> None:
        entry = self._answers.finish(request_id, answer, is_error=is_error)
        points = ANSWER_POINTS.get(entry.method)
        if points is not None:
            failpoints.hit(points[0])
        for connection, call in entry.waiting:
            self._send(connection, call, answer, is_error=is_error)
        if points is not None:
            failpoints.hit(points[1])

    def _send(self, connection: bytes, call: int, body: bytes, *, is_error: bool) -> None:
        self._socket.send(connection, zmq.SNDMORE)
        self._socket.send(encode(AnswerHeader(call, is_error)), zmq.SNDMORE)
        self._socket.send(body)

    def _receive(self) -> _Work | None:
        connection = self._socket.recv()
        frames = [self._socket.recv(copy=False)]
        while frames[-1].more:
            frames.append(self._socket.recv(copy=False))
        call = 0
        try:
            if len(frames) != 2 or len(frames[0].buffer) > _HEADER_LIMIT:
                raise _Refusal("a message is a header and a body")
            try:
                header = _HEADER.decode(frames[0].buffer)
            except _MALFORMED as problem:
                raise _Refusal(f"header: {problem}") from None
            call = header.call
            caller = self._keys.role_of(str(frames[0].get("User-Id")).encode())
            return self._dispatch(connection, caller, header, frames[1].buffer)
        except _Refusal as refusal:
            self._send(connection, call, encode(refusal.failure), is_error=True)
            return None

    def _dispatch(
        self, connection: bytes, caller: str | None, header: RequestHeader, body: memoryview
    ) -> _Work | None:
        route = self._routes.get(header.method)
        if route is None:
            raise _Refusal(f"no method {header.method!r} here")
        method = route.method
        if caller not in method.callers:
            raise _Refusal(f"role {caller} may not call {method.name}", ErrorKind.FORBIDDEN)
        if len(body) > method.limit_bytes:
            most = method.limit_bytes
            raise _Refusal(f"{method.name}: {len(body)} bytes, at most {most}")
        self._fence(caller, header, method)
        try:
            request = self._decoders[method.name].decode(body)
        except _MALFORMED as problem:
            raise _Refusal(f"{method.name}: {problem}") from None
        if method.once:
            if (id_ := header.request_id) is None:
                raise _Refusal(f"{method.name} needs a request id")
            waiter = connection, header.call
            entry, is_new = self._answers.register(id_, method.name, body, waiter)
            if entry.answer is not None:
                self._send(connection, header.call, entry.answer, is_error=False)
            return _Work(route, id_, lambda: route.handler(request)) if is_new else None
        outcome = self._outcome(route, lambda: route.handler(request))
        assert not isinstance(outcome, Future), "a query is answered at once"
        answer, is_error = outcome
        self._send(connection, header.call, answer, is_error=is_error)
        return None

    def _fence(self, caller: str | None, header: RequestHeader, method: Method[Any, Any]) -> None:
        if caller == CONTROLLER:
            if header.caller_attempt < self._seen_controller_attempt:
                raise _Refusal(
                    f"attempt {header.caller_attempt} of the controller has ended; "
                    f"attempt {self._seen_controller_attempt} has taken its place",
                    ErrorKind.FENCED,
                )
            self._seen_controller_attempt = header.caller_attempt
        request, own = header.request_id, self._attempt
        if request and own is not None and method.has_attempt and request.attempt != own:
            message = f"request to attempt {request.attempt} of the role; this is attempt {own}"
            raise _Refusal(message, ErrorKind.STALE_ATTEMPT)
