"""Child pool: children of one kind, each loaded before its first call, and replaced at death."""

import logging
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from ppojob_trainer.children.frames import Loaded, Numbered
from ppojob_trainer.children.process import BoundedProcess, ChildDied, ChildKilled, ChildTimeout
from ppojob_trainer.closeable import Closeable
from ppojob_trainer.errors import ConfigError

START_SECONDS = 120.0
"""Users' files may import large libraries."""
DEFAULT_MEMORY_BYTES = 4 * 1024**3
ATTEMPTS = 2
"""Processes that may die in a call, or an import of users' files, before it counts as the cause."""


A = TypeVar("A", bound=Numbered)
L = TypeVar("L", bound=Loaded)


class NotStarted(Exception):  # noqa: N818  it says what happened
    """No child can be started; the text is a whole message of the job."""


class PoolClosed(ChildDied):
    """The pool is closed, and starts no more children."""


@dataclass(slots=True, weakref_slot=True, eq=False)
class StatefulChild:
    """The child that made the last of some calls, and has their state; none before the first."""

    child: BoundedProcess | None = None

    @property
    def is_alive(self) -> bool:
        """Whether the state is there."""
        return self.child is not None and self.child.is_alive


class ChildPool(Closeable):
    """Children, and threads that call them.

    Args:
        module: of the children, see ``BoundedProcess``.
        load: loads a child; its errors, except ``ChildKilled``, go to the caller.
        memory_bytes: limit of each child's data segment; None for no limit.
        variables: names of environment variables that children inherit.
        threads: one per child by default; more if calls wait for a `StatefulChild` while others
            are idle.

    Attributes:
        submit: runs a function on a thread of the pool, and returns its future.

    Raises:
        NotStarted: the first child is repeatedly killed while it loads.
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
        threads: int | None = None,
    ) -> None:
        self._module = module
        self._load = load
        self._memory_bytes = memory_bytes
        self._variables = tuple(variables)
        self._log = log
        # Last in, first out: further children start only when they are needed.
        self._idle: list[BoundedProcess | None] = []
        self._returned = threading.Condition()
        self._homes = weakref.WeakSet[StatefulChild]()
        self._threads = ThreadPoolExecutor(threads or count, thread_name_prefix="children")
        self.submit = self._threads.submit
        self._children: set[BoundedProcess] = set()
        self._lock = threading.Lock()
        self._is_closed = False
        try:
            first = self._start()
        except BaseException:
            self._threads.shutdown()
            raise
        self._idle += [*[None] * (count - 1), first]

    def call(
        self, request: Numbered, seconds: float, form: type[A], home: StatefulChild | None = None
    ) -> A:
        """Wait for an idle child, start it if needed, and call it.

        The time limit does not include the start. A child with an invalid answer is killed. With a
        `home` it waits for that child, while it lives, and stores the one that it called. Raises
        as `BoundedProcess.call`; ChildDied if it answered another call, PoolClosed if the pool is
        closed, FrameError if the request is too long, MsgspecError if the answer has another type,
        and NotStarted if children are repeatedly killed while they load.
        """
        body = msgspec.msgpack.encode(request)
        child = self._take(home)
        try:
            if child is None or not child.is_alive:
                child = self._start()
            if home is not None:
                home.child = child
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
            with self._returned:
                self._idle.append(child)
                self._returned.notify_all()

    def _take(self, home: StatefulChild | None) -> BoundedProcess | None:
        """Wait for the child of a home, while it lives, or for any other."""

        def free() -> bool:
            if home is not None and home.is_alive:
                return home.child in self._idle
            return bool(self._idle)

        with self._returned:
            self._returned.wait_for(free)
            if home is None:
                return self._idle.pop()
            # Its next calls wait for the same child, so homes are spread over all.
            homes = Counter(one.child for one in self._homes if one.child is not None)
            wanted = home.child if home.child in self._idle else None
            child = wanted or min(reversed(self._idle), key=lambda one: homes[one] if one else 0)
            self._homes.add(home)
            self._idle.remove(child)
            return child

    def close(self) -> None:
        """Kill all children, also busy ones. Idempotent."""
        with self._lock:
            self._is_closed = True
            children = list(self._children)
        for child in children:
            child.abort()
        self._threads.shutdown(cancel_futures=True)
        for child in children:
            child.kill()

    def _start(self) -> BoundedProcess:
        """Start a child, or another one if it is killed, which need not be due to its input."""
        for _ in range(ATTEMPTS):
            try:
                return self._start_once()
            except ChildKilled as killed:
                end = killed
        raise NotStarted(
            f"got files whose import {end}, in {ATTEMPTS} processes: memory is short, or something "
            "kills them; more memory, or files that need less"
        )

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
    form: type[L],
    *,
    files: Iterable[str],
    where: str,
    what: str,
) -> L:
    """Have a new child import users' files.

    For messages: `files` are their names (empty ones are dropped), `where` is their field of the
    spec, and `what` names what they define, in the plural. Raises ChildKilled if it was ended by a
    SIGKILL, and ConfigError if files are invalid, the child ended, or it gave no answer in time.
    """
    try:
        answered = child.call(msgspec.msgpack.encode(request), START_SECONDS)
    except ChildKilled:
        raise
    except (ChildTimeout, ChildDied) as error:
        # It is unknown which file the child was importing.
        names = ", ".join(dict.fromkeys(filter(None, files))) or "no files"
        raise ConfigError(
            f"{where}: got {names}: the import {error}: {what} cannot be loaded; "
            "files that can be imported"
        ) from None
    loaded = msgspec.msgpack.decode(answered, type=form)
    if loaded.problems:
        raise ConfigError(loaded.problems)
    return loaded
