"""Several children of one kind, each got ready before its first call; one that ends is replaced."""

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from ppojob_trainer.children.process import BoundedProcess, ChildDied, ChildKilled
from ppojob_trainer.closeable import Closeable

START_SECONDS = 120.0
"""Users' files may import large libraries."""
DEFAULT_MEMORY_BYTES = 4 * 1024**3
ATTEMPTS = 2
"""Processes that a call, or getting one ready, may end before it is to blame."""

P = ParamSpec("P")
T = TypeVar("T")


class NotStarted(Exception):  # noqa: N818  it says what happened
    """No child can be had; reads on from what is done first in one: "the import ..."."""


class ChildPool(Closeable):
    """Children, and as many threads that call them.

    Args:
        module: of the children, as ``BoundedProcess`` takes it.
        count: at most so many.
        load: gets a child ready; what it raises, but ``ChildKilled``, is for whoever calls.
        memory_bytes: limit of each child's data; None for no limit.
        variables: names of environment variables that they see, where they are set.
        log: where their output goes.

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

    def call(self, body: bytes, seconds: float, read: Callable[[bytes], T]) -> T:
        """Call an idle child, or a new one; waits until there is one.

        Args:
            body: the request.
            seconds: limit of the call; the start of a child does not count.
            read: makes something of the answer; where it raises, the child is ended too.

        Raises:
            ChildTimeout: no answer in time. The child has been killed.
            ChildDied: it ended or answered with garbage, or the pool is closed.
            ChildKilled: it ended, and by a SIGKILL.
            NotStarted: children are killed again and again while they are got ready.
        """
        child = self._idle.get()
        try:
            if child is None or not child.is_alive:
                child = self._start()
            answer = child.call(body, seconds)
            try:
                return read(answer)
            except BaseException:
                child.kill()
                raise
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
                raise ChildDied("was not started: the pool has been closed")
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
