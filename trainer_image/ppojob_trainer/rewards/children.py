"""Child processes that have loaded the reward functions, each for one call at a time."""

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Final, ParamSpec, TypeVar

from ppojob_api.v1alpha1.code_source import source_field
from ppojob_trainer.children.pool import ChildPool, NotStarted, PoolClosed, import_files
from ppojob_trainer.children.process import BoundedProcess
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
P = ParamSpec("P")
T = TypeVar("T")

_FIELDS: Final = {
    "RewardModule": "source.path",
    "RewardFunction": "function",
    "RewardArguments": "arguments",
}
"""Fields of a reward that the reason codes of `BadFunction` are about."""


class Children(Closeable):
    """A pool of them; what goes wrong with the pool is told as a failure of rewards.

    Args:
        request: the functions to load.
        processes: children, at most.
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
        self.batched = frozenset[int]()
        with _failures():
            self._pool = ChildPool(
                "ppojob_trainer.rewards.child",
                count=processes,
                load=self._load,
                memory_bytes=memory_bytes,
                variables=variables,
                log=log,
            )

    def submit(self, act: Callable[P, T], *given: P.args, **named: P.kwargs) -> Future[T]:
        """Do something on a thread of the pool; it may `call`."""
        return self._pool.submit(act, *given, **named)

    def call(self, request: CallFunction | CallBatch, seconds: float, form: type[Answer]) -> Answer:
        """Have an idle child, or a new one, answer a request.

        Raises:
            ChildTimeout, ChildDied, FrameError, msgspec.MsgspecError: there is no answer.
            RewardFailed: no child can be had any more.
        """
        with _failures():
            return self._pool.call(request, seconds, form)

    def close(self) -> None:
        """End all children, at once also those that are at work. Idempotent."""
        self._pool.close()

    def _load(self, child: BoundedProcess) -> None:
        loaded = import_files(child, self._request, Loaded, where="spec.rewards", what="functions")
        if loaded.problems:
            raise ConfigError(
                f"spec.rewards[{problem.position}].{self._field(problem)}: "
                f"got {problem.got}: {problem.why}; {problem.allowed}"
                for problem in loaded.problems
            )
        self.batched = frozenset(loaded.batched)

    def _field(self, problem: FunctionProblem) -> str:
        function, field = self._request.functions[problem.position], _FIELDS[problem.reason_code]
        if field != "source.path":
            return field
        return "source.package" if function.package else source_field(function.path)


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except NotStarted as problem:
        raise RewardFailed("spec.rewards", problem.reason) from None
    except PoolClosed:
        raise RewardFailed("scoring", "the pool has been closed") from None
