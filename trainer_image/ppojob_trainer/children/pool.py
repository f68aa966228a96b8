"""Several children of one kind, each got ready before its first call; one that ends is replaced."""

import logging
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, Protocol, TypeVar

import msgspec

from ppojob_trainer.children.process import (
    BoundedProcess,
    ChildDied,
    ChildKilled,
    ChildTimeout,
)
from ppojob_trainer.closeable import Closeable
from ppojob_trainer.errors import ConfigError

START_SECONDS = 120.0
"""Users' files may import large libraries."""
DEFAULT_MEMORY_BYTES = 4 * 1024**3
ATTEMPTS = 2
"""Processes that a call, or getting one ready, may end before it is to blame."""

P = ParamSpec("P")
T = TypeVar("T")


class Numbered(Protocol):
    """A call, or the answer to one, which repeats its number."""

    @property
    def number(self) -> int:
        """Of the call."""
        ...


A = TypeVar("A", bound=Numbered)


class NotStarted(Exception):  # noqa: N818  it says what happened
    """No child can be had; reads on from what is done first in one: "the import ..."."""

    @property
    def reason(self) -> str:
        """The whole of it, for a message of the job."""
        return (
            f"got files whose import {self}: memory is short, or something kills them; "
            "more memory, or files that need less"
        )


class PoolClosed(ChildDied):
    """Nothing is started any more."""


class ChildPool(Closeable):
    """Children, and as many threads that call them.

    Args:
        module: of the children, as ``BoundedProcess`` takes it.
        load: gets a child ready; what it raises, but ``ChildKilled``, is for whoever calls.
        memory_bytes: limit of each child's data; None for no limit.
        variables: names of environment variables that they see, where they are set.

    Raises:
        NotStarted: the first is killed again and again while it is got ready.
    """

    def __init__(
        self,
        module: str,
        *,
        count: int,
        load: Callable[[BoundedProcess], None],
        memory_bytes: int | None,
        variables: Sequence[str],
        log: logging.Logger,
    ) -> None:
        self._module = module
        self._load = load
        self._memory_bytes = memory_bytes
        self._variables = tuple(variables)
        self._log = log
        # The last that was at work is the next: others are started where there is work for them.
        self._idle: queue.LifoQueue[BoundedProcess | None] = queue.LifoQueue()
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="children")
        self._children: set[BoundedProcess] = set()
        self._lock = threading.Lock()
        self._is_closed = False
        try:
            first = self._start()
        except BaseException:
            self._threads.shutdown()
            raise
        for one in (*[None] * (count - 1), first):
            self._idle.put(one)

    def submit(self, act: Callable[P, T], *given: P.args, **named: P.kwargs) -> Future[T]:
        """Do something on a thread of the pool; it may `call`."""
        return self._threads.submit(act, *given, **named)

    def call(self, request: Numbered, seconds: float, form: type[A]) -> A:
        """Call an idle child, or a new one; waits until there is one.

        Args:
            request: what children of this kind take.
            seconds: limit of the call; the start of a child does not count.
            form: of the answer; a child that gives another is ended.

        Raises:
            ChildTimeout: no answer in time. The child has been killed.
            ChildDied: it ended, broke the protocol, or gave the answer to another call.
            ChildKilled: it ended, and by a SIGKILL.
            PoolClosed: it was not started, since the pool is closed.
            FrameError: the request is too long.
            msgspec.MsgspecError: the answer has another form.
            NotStarted: children are killed again and again while they are got ready.
        """
        body = msgspec.msgpack.encode(request)
        child = self._idle.get()
        try:
            if child is None or not child.is_alive:
                child = self._start()
            answered = child.call(body, seconds)
            try:
                answer = msgspec.msgpack.decode(answered, type=form)
                if answer.number != request.number:
                    raise ChildDied("gave an answer to another call")
            except BaseException:
                child.kill()
                raise
            return answer
        finally:
            self._idle.put(child)

    def close(self) -> None:
        """End all children, at once also those that are at work. Idempotent."""
        with self._lock:
            self._is_closed = True
            children = list(self._children)
        for child in children:
            child.abort()
        self._threads.shutdown(cancel_futures=True)
        for child in children:
            child.kill()

    def _start(self) -> BoundedProcess:
        """Start a child; a second one where something killed the first, which is nobody's input."""
        for _ in range(ATTEMPTS):
            try:
                return self._start_once()
            except ChildKilled as killed:
                end = killed
        raise NotStarted(f"{end}, in {ATTEMPTS} processes")

    def _start_once(self) -> BoundedProcess:
        with self._lock:
            if self._is_closed:
                raise PoolClosed("was not started: the pool has been closed")
            child = BoundedProcess(
                self._module,
                memory_bytes=self._memory_bytes,
                log=self._log,
                variables=self._variables,
            )
            self._children = {old for old in self._children if old.is_alive} | {child}
        try:
            self._load(child)
        except BaseException:
            child.kill()
            raise
        return child


def import_files(
    child: BoundedProcess,
    request: msgspec.Struct,
    form: type[T],
    *,
    files: Iterable[str],
    where: str,
    what: str,
) -> T:
    """Have a child import users' files.

    Args:
        child: it has imported nothing yet.
        request: says which files.
        form: of the answer.
        files: their names, for messages; empty ones are none.
        where: in the spec they are named.
        what: is made of them, in the plural.

    Raises:
        ChildKilled: it ended by a SIGKILL.
        ConfigError: it ended otherwise, or gave no answer in time.
    """
    try:
        answered = child.call(msgspec.msgpack.encode(request), START_SECONDS)
        return msgspec.msgpack.decode(answered, type=form)
    except ChildKilled:
        raise
    except (ChildTimeout, ChildDied) as error:
        reason = str(error) or f"gave no answer in {START_SECONDS:g} s"
        # Which of them it was at, the child took with it.
        names = ", ".join(dict.fromkeys(filter(None, files))) or "no files"
        raise ConfigError(
            f"{where}: got {names}: the import {reason}: {what} cannot be loaded; "
            "files that can be imported"
        ) from None
