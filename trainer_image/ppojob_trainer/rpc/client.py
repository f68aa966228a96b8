"""RPC client: concurrent calls to many peers, retried until answered or cancelled.

A call is sent again every few seconds with the same request id, which the server recognises, so
lost messages and broken connections are harmless. `watch` runs during a wait, and raises when a
role is lost. A started call may be waited for later, with other calls in between.
"""

import contextlib
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec
import zmq

from ppojob_trainer.rpc.keys import KeyRing
from ppojob_trainer.rpc.methods import Method
from ppojob_trainer.rpc.wire import (
    AnswerHeader,
    ErrorKind,
    Failure,
    RequestHeader,
    RequestId,
    encode,
)

_READABLE = int(zmq.POLLIN)
_ANSWER_HEADER = msgspec.msgpack.Decoder(AnswerHeader)
_FAILURE = msgspec.msgpack.Decoder(Failure)
_REPEAT_SECONDS = 5.0
_WATCH_SECONDS = 0.5
_WAIT_MILLISECONDS = int(_WATCH_SECONDS * 500)
_AWAKE_SECONDS = 200e-6
"""Busy waiting: shorter than the wake-up of a sleeping thread."""
_CONNECT_MILLISECONDS = 2_000
_HEARTBEAT_MILLISECONDS = 5_000
_SILENT_MILLISECONDS = 20_000

Answer = TypeVar("Answer", bound=msgspec.Struct)


class CallRefused(Exception):  # noqa: N818
    """A peer answered with an error."""

    def __init__(self, peer: "Peer", method: str, failure: Failure) -> None:
        super().__init__(f"{peer.name}: {method}: {failure.message}")
        self.peer = peer
        self.failure = failure

    @property
    def kind(self) -> ErrorKind:
        return self.failure.kind


class CallTimeout(Exception):  # noqa: N818
    """A peer did not answer within the deadline."""

    def __init__(self, peer: "Peer", method: str, seconds: float) -> None:
        super().__init__(f"{peer.name}: no answer to {method} within {seconds:g} s")
        self.peer = peer


@dataclass(frozen=True)
class Peer:
    """A peer: its name in messages, its address, and the role whose key it must have."""

    name: str
    host: str
    port: int
    role: str


@dataclass(frozen=True)
class Call(Generic[Answer]):
    """One call to one peer."""

    peer: Peer
    method: Method[Any, Answer]
    request: msgspec.Struct
    request_id: RequestId | None = None


@dataclass(slots=True)
class _Underway:
    call: Call[Any]
    number: int
    pending: "Pending[Any]"
    header: bytes
    body: bytes
    limit_seconds: float
    deadline: float
    repeat_at: float


@dataclass(slots=True, eq=False)
class Pending(Generic[Answer]):
    """Started calls; `refusal` is the first error answer."""

    calls: Sequence[Call[Answer]]
    refusal: CallRefused | None = None
    _numbers: list[int] = field(default_factory=list)
    _answers: dict[int, Answer] = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        """Whether all have answered, or one with an error."""
        return self.refusal is not None or len(self._answers) == len(self._numbers)

    @property
    def answers(self) -> list[Answer]:
        """Return the answers in the order of the calls; CallRefused if one is an error."""
        if self.refusal is not None:
            raise self.refusal
        return [self._answers[number] for number in self._numbers]


@dataclass(slots=True)
class Traffic:
    """Bytes of work requests and their answers; queries, sent by the clock, are left out."""

    sent: int = 0
    received: int = 0

    def metrics(self) -> dict[str, float]:
        """Return the metrics; they include retries, so they depend on the clock."""
        return {"rpc/sent_bytes": float(self.sent), "rpc/received_bytes": float(self.received)}


@dataclass
class Caller:
    """Makes calls, from one thread."""

    keys: KeyRing
    attempt: int = 0  # the controller's attempt, 0 for other roles
    default_deadline_seconds: float = 60.0  # for methods without a deadline
    traffic: Traffic = field(default_factory=Traffic)

    def __post_init__(self) -> None:
        self._context = zmq.Context()
        self._sockets: dict[Peer, zmq.Socket[bytes]] = {}
        self._numbers = itertools.count(1)
        self._underway: dict[int, _Underway] = {}

    def close(self) -> None:
        for socket in self._sockets.values():
            socket.close(linger=0)
        self._sockets.clear()
        self._context.term()

    def disconnect(self, peer: Peer) -> None:
        socket = self._sockets.pop(peer, None)
        if socket is not None:
            socket.close(linger=0)

    def call(self, call: Call[Answer], watch: Callable[[], None] | None = None) -> Answer:
        """Make one call and wait; see `call_all`."""
        return self.call_all([call], watch)[0]

    def call_all(
        self, calls: Sequence[Call[Answer]], watch: Callable[[], None] | None = None
    ) -> list[Answer]:
        """Make concurrent calls and wait for all; raises as `start` and `wait`."""
        return self.wait(self.start(calls), watch)

    def start(self, calls: Sequence[Call[Answer]]) -> Pending[Answer]:
        """Send calls without waiting, at most one in flight per peer and method.

        CallRefused if a request exceeds the limit of its method.
        """
        pending = Pending(calls)
        for call in calls:
            item = self._send_first(call, pending)
            pending._numbers.append(item.number)
            self._underway[item.number] = item
        return pending

    def wait(
        self, pending: Pending[Answer], watch: Callable[[], None] | None = None
    ) -> list[Answer]:
        """Wait for started calls; return the answers in the order of the calls.

        All calls in flight are retried meanwhile. If this raises, these calls are cancelled.
        `watch` is called twice a second; its exceptions end the wait.

        Raises:
            CallRefused: a peer answered with an error.
            CallTimeout: a peer has not answered within the deadline.
        """
        # A single socket waits in its own receive call, which is faster than a poller.
        sockets = {self._socket(item.call.peer) for item in self._underway.values()}
        poller = zmq.Poller() if len(sockets) > 1 else None
        for socket in sockets:
            if poller is None:
                _busy_wait(socket)
            else:
                poller.register(socket, zmq.POLLIN)
        watch_at = time.monotonic() + _WATCH_SECONDS
        try:
            while not pending.is_done:
                ready = sockets
                if poller is not None:
                    ready = {socket for socket, _ in poller.poll(_WAIT_MILLISECONDS)}
                for socket in ready:
                    self._receive(socket)
                now = time.monotonic()
                if watch is not None and now >= watch_at:
                    watch()
                    watch_at = time.monotonic() + _WATCH_SECONDS
                for item in self._underway.values():
                    if item.pending is pending and now >= item.deadline:
                        self.disconnect(item.call.peer)  # its successor must not get its requests
                        raise CallTimeout(item.call.peer, item.call.method.name, item.limit_seconds)
                    if now >= item.repeat_at:
                        item.repeat_at = now + _REPEAT_SECONDS
                        self._send(item)
            return pending.answers
        finally:
            self.cancel(pending)

    def cancel(self, pending: Pending[Any]) -> None:
        """Stop waiting for calls; the peers finish their work."""
        for number in pending._numbers:
            self._underway.pop(number, None)

    def _send_first(self, call: Call[Any], pending: Pending[Any]) -> _Underway:
        number = next(self._numbers)
        header = encode(RequestHeader(number, call.method.name, self.attempt, call.request_id))
        limit = call.method.deadline_seconds or self.default_deadline_seconds
        body = encode(call.request)
        if (size := len(body)) > (most := call.method.limit_bytes):  # the server would disconnect
            message = f"got a request of {size} bytes: it would not be read; at most {most}"
            failure = Failure(ErrorKind.BAD_REQUEST, message)
            raise CallRefused(call.peer, call.method.name, failure)
        now = time.monotonic()
        item = _Underway(
            call,
            number,
            pending,
            header,
            body,
            limit_seconds=limit,
            deadline=now + limit,
            repeat_at=now + _REPEAT_SECONDS,
        )
        self._send(item)
        return item

    def _send(self, item: _Underway) -> None:
        socket = self._socket(item.call.peer)
        with contextlib.suppress(zmq.Again):  # a full queue; it is retried in any case
            socket.send(item.header, zmq.SNDMORE | zmq.NOBLOCK)
            socket.send(item.body, zmq.NOBLOCK)
        if item.call.method.once:
            self.traffic.sent += len(item.header) + len(item.body)

    def _receive(self, socket: "zmq.Socket[bytes]") -> None:
        """Wait briefly for one answer; drop it if its call was cancelled."""
        try:
            header_frame = socket.recv()
        except zmq.Again:
            return
        body = socket.recv()
        header = _ANSWER_HEADER.decode(header_frame)
        item = self._underway.pop(header.call, None)
        if item is None:
            return
        pending, method = item.pending, item.call.method
        if method.once:
            self.traffic.received += len(header_frame) + len(body)
        if header.error:
            refusal = CallRefused(item.call.peer, method.name, _FAILURE.decode(body))
            pending.refusal = pending.refusal or refusal
        else:
            pending._answers[header.call] = msgspec.msgpack.decode(body, type=method.answer)

    def _socket(self, peer: Peer) -> "zmq.Socket[bytes]":
        if peer not in self._sockets:
            socket = self._context.socket(zmq.DEALER)
            socket.curve_publickey = self.keys.public[self.keys.role]
            socket.curve_secretkey = self.keys.secret
            socket.curve_serverkey = self.keys.public[peer.role]
            socket.linger = 0
            socket.rcvtimeo = _WAIT_MILLISECONDS
            socket.reconnect_ivl = 50
            socket.reconnect_ivl_max = 1000
            # A recreated pod has another address. Names are resolved at each attempt to connect, so
            # an attempt must time out soon, and heartbeats must detect dead connections.
            socket.connect_timeout = _CONNECT_MILLISECONDS
            socket.heartbeat_ivl = _HEARTBEAT_MILLISECONDS
            socket.heartbeat_timeout = _SILENT_MILLISECONDS
            socket.connect(f"tcp://{peer.host}:{peer.port}")
            self._sockets[peer] = socket
        return self._sockets[peer]


def _busy_wait(socket: "zmq.Socket[bytes]") -> None:
    until = time.monotonic() + _AWAKE_SECONDS
    while time.monotonic() < until and not int(socket.getsockopt(zmq.EVENTS)) & _READABLE:
        pass
