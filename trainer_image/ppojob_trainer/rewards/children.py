"""Child processes that have loaded the reward functions, each for one call at a time."""

import logging
import queue
import threading
from collections.abc import Sequence
from typing import Final, TypeVar

import msgspec

from ppojob_trainer.children.process import (
    BoundedProcess,
    ChildDied,
    ChildKilled,
    ChildTimeout,
)
from ppojob_trainer.closeable import Closeable
from ppojob_trainer.errors import ConfigError, RewardFailed
from ppojob_trainer.rewards.wire import (
    CallBatch,
    Called,
    CalledBatch,
    CallFunction,
    FunctionProblem,
    Loaded,
    LoadFunctions,
)

Answer = TypeVar("Answer", Called, CalledBatch)

START_SECONDS: Final = 120.0
"""A reward file may import large libraries."""
ATTEMPTS: Final = 2
"""Processes that a call, or the loading of functions, may end before it is to blame."""

_FIELDS: Final = {
    "RewardModule": "source.path",
    "RewardFunction": "function",
    "RewardArguments": "arguments",
}
"""Fields of a reward that the reason codes of `BadFunction` are about."""


class Children(Closeable):
    """As many processes as calls are made at one time; a new one where one has ended.

    Args:
        request: the functions to load.
        processes: children; the first is started now, the others when there is work.
        memory_bytes: limit of each process's data.
        variables: names of environment variables that the functions see, where they are set.
        log: where children's output goes.

    Attributes:
        batched: positions of the functions that take all responses at once.

    Raises:
        ConfigError: functions cannot be loaded; every problem, one line each.
        RewardFailed: processes are killed again and again while they load them.
    """

    def __init__(
        self,
        request: LoadFunctions,
        *,
        processes: int,
        memory_bytes: int | None,
        variables: Sequence[str],
        log: logging.Logger,
    ) -> None:
        self._request = request
        self._memory_bytes = memory_bytes
        self._variables = tuple(variables)
        self._log = log
        self._idle: queue.SimpleQueue[BoundedProcess | None] = queue.SimpleQueue()
        self._children: set[BoundedProcess] = set()
        self._lock = threading.Lock()
        self._is_closed = False
        self.batched = frozenset[int]()
        self._idle.put(self._start())
        for _ in range(processes - 1):
            self._idle.put(None)  # started when there is work for it

    def call(
        self, request: CallFunction | CallBatch, seconds: float, answer: type[Answer]
    ) -> Answer:
        """Have an idle child, or a new one, answer a request.

        Raises:
            ChildTimeout, ChildDied, FrameError, msgspec.MsgspecError: there is no answer.
        """
        child = self._idle.get()
        try:
            if child is None or not child.is_alive:
                child = self._start()
            body = child.call(msgspec.msgpack.encode(request), seconds)
            given = msgspec.msgpack.decode(body, type=answer)
            if given.number != request.number:
                child.kill()
                raise ChildDied("gave an answer to another call")
            return given
        finally:
            self._idle.put(child)

    def abort(self) -> None:
        """End all children at once, also those that are at work."""
        with self._lock:
            self._is_closed = True
            children = list(self._children)
        for child in children:
            child.abort()

    def close(self) -> None:
        """End all children, and wait for it. Idempotent."""
        self.abort()
        for child in list(self._children):
            child.kill()

    def _start(self) -> BoundedProcess:
        """Start a child; a second one where something killed the first, which is nobody's input."""
        for _ in range(ATTEMPTS):
            try:
                return self._start_once()
            except ChildKilled as killed:
                end = killed
        raise RewardFailed(
            "spec.rewards",
            f"got files whose import {end}, in {ATTEMPTS} processes: memory is short, or something "
            "kills them; more memory, or files that need less",
        )

    def _start_once(self) -> BoundedProcess:
        with self._lock:
            if self._is_closed:
                raise RewardFailed("scoring", "the pool has been closed")
            child = BoundedProcess(
                "ppojob_trainer.rewards.child",
                memory_bytes=self._memory_bytes,
                log=self._log,
                variables=self._variables,
            )
            self._children = {old for old in self._children if old.is_alive} | {child}
        try:
            body = child.call(msgspec.msgpack.encode(self._request), START_SECONDS)
            loaded = msgspec.msgpack.decode(body, type=Loaded)
        except ChildKilled:
            raise
        except (ChildTimeout, ChildDied) as error:
            child.kill()
            reason = str(error) or f"gave no answer in {START_SECONDS:g} s"
            raise ConfigError(
                f"spec.rewards: got files whose import {reason}: functions cannot be loaded; "
                "files that can be imported"
            ) from None
        if loaded.problems:
            child.kill()
            raise ConfigError(
                f"spec.rewards[{problem.position}].{self._field(problem)}: "
                f"got {problem.got}: {problem.why}; {problem.allowed}"
                for problem in loaded.problems
            )
        self.batched = frozenset(loaded.batched)
        return child

    def _field(self, problem: FunctionProblem) -> str:
        is_of_package = bool(self._request.functions[problem.position].package)
        field = _FIELDS[problem.reason_code]
        return "source.package" if is_of_package and field == "source.path" else field
