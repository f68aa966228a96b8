"""Work queue of jobs to reconcile: each at most once at a time, the longest due first."""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable

from ppojob_operator.errors import ClusterError, NotLeaderError, UnavailableError
from ppojob_operator.metrics import QUEUE_AGE_SECONDS, QUEUE_LENGTH
from ppojob_operator.reading import JobKey

_log = logging.getLogger(__name__)
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 60.0

_REST_SECONDS = 0.2
"""A job that was looked at is left alone for so long. Its own writes and the pods that they make
come back as a burst of events; one look is enough for all."""
_LONGEST_REST_SECONDS = 1.0
"""A job that does not come to rest is left alone twice as long each time, up to this: its pods
become ready one by one, and each look may cost a write."""


class JobQueue:
    """A queue of jobs.

    Args:
        look: reconciles a job; answers in how many seconds it is to be looked at again, or None.
        workers: jobs that are looked at the same time.
    """

    def __init__(self, look: Callable[[JobKey], Awaitable[float | None]], workers: int) -> None:
        self._look = look
        self._workers = workers
        self._rests: dict[JobKey, float] = {}
        self._due: dict[JobKey, float] = {}
        self._busy: set[JobKey] = set()
        self._timers: dict[JobKey, asyncio.TimerHandle] = {}
        self._failures: dict[JobKey, int] = {}
        self._ready = asyncio.Semaphore(0)

    def wake(self, key: JobKey) -> None:
        """Have a job looked at; one that is looked at now is looked at once more."""
        if key in self._due:
            return
        self._due[key] = time.monotonic()
        if key not in self._busy:
            self._ready.release()
        QUEUE_LENGTH.set(len(self._due))

    @property
    def oldest_seconds(self) -> float:
        """For how long the job that is due the longest has been waiting; busy ones aside."""
        waiting = [since for key, since in self._due.items() if key not in self._busy]
        return time.monotonic() - min(waiting) if waiting else 0.0

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._workers):
                group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            await self._ready.acquire()
            key = next(key for key in self._due if key not in self._busy)
            QUEUE_AGE_SECONDS.observe(time.monotonic() - self._due.pop(key))
            QUEUE_LENGTH.set(len(self._due))
            self._busy.add(key)
            if timer := self._timers.pop(key, None):
                timer.cancel()
            again = await self._look_once(key)
            loop = asyncio.get_running_loop()
            if again is not None:
                self._timers[key] = loop.call_later(again, self._wake_again, key)
            loop.call_later(self._rests.get(key, _REST_SECONDS), self._end_rest, key)

    async def _look_once(self, key: JobKey) -> float | None:
        try:
            again = await self._look(key)
        except (ClusterError, NotLeaderError) as problem:
            _log.warning("%s/%s: %s", *key, problem)
            return self._pause(key, problem)
        except Exception as problem:
            # One job that cannot be dealt with must not stop the others.
            _log.exception("%s/%s: reconcile failed", *key)
            return self._pause(key, problem)
        self._failures.pop(key, None)
        return again

    def _pause(self, key: JobKey, problem: Exception) -> float:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        pause = min(_FIRST_PAUSE_SECONDS * 2.0 ** min(failures - 1, 16), _LONGEST_PAUSE_SECONDS)
        asked = problem.retry_after if isinstance(problem, UnavailableError) else None
        return max(asked or 0.0, pause * random.uniform(0.5, 1.0))

    def _end_rest(self, key: JobKey) -> None:
        self._busy.discard(key)
        if key in self._due:
            rest = 2 * self._rests.get(key, _REST_SECONDS)
            self._rests[key] = min(rest, _LONGEST_REST_SECONDS)
            self._ready.release()
        else:
            self._rests.pop(key, None)

    def _wake_again(self, key: JobKey) -> None:
        self._timers.pop(key, None)
        self.wake(key)
