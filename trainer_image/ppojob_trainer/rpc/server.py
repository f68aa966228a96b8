"""The server side: one thread speaks to the wire, the process's main thread does the work.

So a rank answers questions while its engine generates. Every message is checked in this order:
known key (by CURVE, before a byte of ours is read), method, caller's role, size, schema, fencing by
the controller's epoch, the role's own epoch; only then does a handler see it.
"""

import logging
import queue
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import zmq
from zmq.auth.thread import ThreadAuthenticator

from ppojob_trainer import failpoints
from ppojob_trainer.rpc.answers import AnswerStore, RequestChangedError
from ppojob_trainer.rpc.keys import KeyRing
from ppojob_trainer.rpc.methods import ANSWER_POINTS, CONTROLLER, Method
from ppojob_trainer.rpc.wire import (
    AnswerHeader,
    ErrorKind,
    Failure,
    RequestHeader,
    RequestId,
    encode,
)

_log = logging.getLogger(__name__)
_HEADER = msgspec.msgpack.Decoder(RequestHeader)
_HEADER_LIMIT = 4096
Handler = Callable[[Any], msgspec.Struct]


@dataclass(frozen=True)
class Route:
    """A method and what does it; `inline` ones run on the wire's thread and must not block."""

    method: Method[Any, Any]
    handler: Handler
    inline: bool = False


@dataclass(frozen=True)
class _Work:
    """Checked work on its way from the wire to the main thread."""

    route: Route
    request_id: RequestId
    body: msgspec.Struct


class _Refusal(Exception):  # noqa: N818 - a message that is refused is no fault of ours
    """A message that no handler will see."""

    def __init__(self, kind: ErrorKind, message: str) -> None:
        super().__init__(message)
        self.failure = Failure(kind, message)


class RpcServer:
    """Serves the methods of one process.

    Args:
        address: IP address to bind.
        port: port to bind.
        keys: the role's key ring; all roles in it may connect, each method says who may call it.
        routes: what is served.
        epoch: epoch of the role; requests with another one in their id are refused. None where
            the process outlives epochs (supervisors).

    Raises:
        zmq.ZMQError: the address cannot be bound.
    """

    def __init__(
        self, address: str, port: int, keys: KeyRing, routes: list[Route], epoch: int | None
    ) -> None:
        self._keys = keys
        self._routes = {route.method.name: route for route in routes}
        self._decoders = {
            route.method.name: msgspec.msgpack.Decoder(route.method.request) for route in routes
        }
        self._epoch = epoch
        self._seen_controller_epoch = 0
        self._answers = AnswerStore()
        self._work: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._context = zmq.Context()
        self._authenticator = ThreadAuthenticator(self._context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback("*", credentials_provider=self)
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.curve_server = True
        self._socket.curve_secretkey = keys.secret
        self._socket.maxmsgsize = max(route.method.limit_bytes for route in routes) + _HEADER_LIMIT
        self._socket.linger = 200
        self._socket.bind(f"tcp://{address}:{port}")
        self._done_in = self._context.socket(zmq.PAIR)
        self._done_in.bind("inproc://done")
        self._done_out = self._context.socket(zmq.PAIR)
        self._done_out.connect("inproc://done")
        self._thread = threading.Thread(target=self._serve, name="rpc", daemon=True)

    def callback(self, _domain: str, key: bytes) -> bool:
        """Whether a public key may connect (asked by the authenticator)."""
        return self._keys.role_of(key) is not None

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def work(self) -> None:
        """Do the work that arrives, on the calling thread, until `close`."""
        while (item := self._work.get()) is not None:
            answer, is_error = self._run(item)
            self._done_out.send_multipart(
                [encode(item.request_id), b"\1" if is_error else b"\0", answer]
            )

    def close(self) -> None:
        """Stop `work` and the wire; safe to call from any thread, once."""
        self._work.put(None)
        if self._thread.is_alive():
            stopper = self._context.socket(zmq.PAIR)
            stopper.connect("inproc://stop")
            stopper.send(b"")
            self._thread.join(timeout=5)
            stopper.close()
        self._authenticator.stop()
        self._done_out.close()
        self._context.term()

    def _run(self, item: _Work) -> tuple[bytes, bool]:
        try:
            return encode(item.route.handler(item.body)), False
        except Exception as problem:
            _log.exception("%s failed", item.route.method.name)
            message = f"{type(problem).__name__}: {problem}"
            return encode(Failure(ErrorKind.FAILED, message, traceback.format_exc())), True

    def _serve(self) -> None:
        stop = self._context.socket(zmq.PAIR)
        stop.bind("inproc://stop")
        poller = zmq.Poller()
        for socket in (self._socket, self._done_in, stop):
            poller.register(socket, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self._done_in in ready:
                self._deliver(*self._done_in.recv_multipart())
            if self._socket in ready:
                self._receive()
            if stop in ready:
                break
        for socket in (self._socket, self._done_in, stop):
            socket.close()

    def _deliver(self, request: bytes, error: bytes, answer: bytes) -> None:
        request_id = msgspec.msgpack.decode(request, type=RequestId)
        is_error = error == b"\1"
        entry = self._answers.settle(request_id, answer, is_error=is_error)
        points = ANSWER_POINTS.get(entry.method)
        if points is not None:
            failpoints.hit(points.before)
        for connection, call in entry.waiting:
            self._send(connection, call, answer, is_error=is_error)
        if points is not None:
            failpoints.hit(points.after)

    def _send(self, connection: bytes, call: int, body: bytes, *, is_error: bool) -> None:
        self._socket.send_multipart([connection, encode(AnswerHeader(call, is_error)), body])

    def _receive(self) -> None:
        frames = self._socket.recv_multipart(copy=False)
        connection = frames[0].bytes
        call = 0
        try:
            if len(frames) != 3 or len(frames[1].buffer) > _HEADER_LIMIT:
                raise _Refusal(ErrorKind.BAD_REQUEST, "a message is a header and a body")
            try:
                header = _HEADER.decode(frames[1].buffer)
            except msgspec.MsgspecError as problem:
                raise _Refusal(ErrorKind.BAD_REQUEST, f"header: {problem}") from None
            call = header.call
            caller = self._keys.role_of(str(frames[0].get("User-Id")).encode())
            self._dispatch(connection, caller, header, frames[2].buffer)
        except _Refusal as refusal:
            self._send(connection, call, encode(refusal.failure), is_error=True)

    def _dispatch(
        self, connection: bytes, caller: str | None, header: RequestHeader, body: memoryview
    ) -> None:
        route = self._routes.get(header.method)
        if route is None:
            raise _Refusal(ErrorKind.BAD_REQUEST, f"no method {header.method!r} here")
        method = route.method
        if caller not in method.callers:
            raise _Refusal(ErrorKind.FORBIDDEN, f"role {caller} may not call {method.name}")
        if len(body) > method.limit_bytes:
            raise _Refusal(
                ErrorKind.BAD_REQUEST,
                f"{method.name}: {len(body)} bytes, at most {method.limit_bytes}",
            )
        self._fence(caller, header)
        try:
            request = self._decoders[method.name].decode(body)
        except msgspec.MsgspecError as problem:
            raise _Refusal(ErrorKind.BAD_REQUEST, f"{method.name}: {problem}") from None
        if method.once:
            self._accept_work(connection, header, route, request, bytes(body))
        else:
            answer = encode(route.handler(request))
            self._send(connection, header.call, answer, is_error=False)

    def _fence(self, caller: str | None, header: RequestHeader) -> None:
        if caller == CONTROLLER:
            if header.caller_epoch < self._seen_controller_epoch:
                raise _Refusal(
                    ErrorKind.FENCED,
                    f"controller epoch {header.caller_epoch} is over; "
                    f"{self._seen_controller_epoch} has taken its place",
                )
            self._seen_controller_epoch = header.caller_epoch
        request = header.request_id
        if request is not None and self._epoch is not None and request.epoch != self._epoch:
            raise _Refusal(
                ErrorKind.STALE_EPOCH,
                f"request of epoch {request.epoch}, this role is at {self._epoch}",
            )

    def _accept_work(
        self,
        connection: bytes,
        header: RequestHeader,
        route: Route,
        request: msgspec.Struct,
        body: bytes,
    ) -> None:
        request_id = header.request_id
        if request_id is None:
            raise _Refusal(ErrorKind.BAD_REQUEST, f"{header.method} needs a request id")
        waiter = (connection, header.call)
        try:
            entry, is_new = self._answers.ask(request_id, header.method, body, waiter)
        except RequestChangedError as problem:
            raise _Refusal(ErrorKind.BAD_REQUEST, str(problem)) from None
        if is_new and route.inline:
            answer, is_error = self._run(_Work(route, request_id, request))
            self._deliver(encode(request_id), b"\1" if is_error else b"\0", answer)
        elif is_new:
            self._work.put(_Work(route, request_id, request))
        elif entry.answer is not None:
            self._send(connection, header.call, entry.answer, is_error=False)
