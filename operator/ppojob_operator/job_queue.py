"""Work queue of jobs to reconcile: each at most once at a time, the longest waiting first."""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable

from ppojob_operator.errors import ClusterError, NotLeaderError, UnavailableError
from ppojob_operator.metrics import QUEUE_AGE_SECONDS, QUEUE_LENGTH
from ppojob_operator.reading import JobKey

_log = logging.getLogger(__name__)
_FIRST_BACKOFF_SECONDS = 0.5
_LONGEST_BACKOFF_SECONDS = 60.0

_COOLDOWN_SECONDS = 0.2
"""Time after a reconcile in which the same job is not reconciled again. Its own writes and the pods
that they create come back as a burst of events; one reconcile handles all of them."""
_LONGEST_COOLDOWN_SECONDS = 1.0
"""The cooldown doubles, up to this, while a job keeps changing: its pods become ready one by one,
and each reconcile may write the status."""


class JobQueue:
    """A queue of jobs.

    Args:
        reconcile: reconciles a job; returns the seconds until the next reconcile, or None.
        workers: number of jobs reconciled concurrently.
    """

    def __init__(
        self, reconcile: Callable[[JobKey], Awaitable[float | None]], workers: int
    ) -> None:
        self._reconcile = reconcile
        self._workers = workers
        self._cooldowns: dict[JobKey, float] = {}
        self._due: dict[JobKey, float] = {}
        self._busy: set[JobKey] = set()
        self._timers: dict[JobKey, asyncio.TimerHandle] = {}
        self._failures: dict[JobKey, int] = {}
        self._ready = asyncio.Semaphore(0)

    def enqueue(self, key: JobKey) -> None:
        """Have a job reconciled; one that is being reconciled is reconciled once more."""
        if key in self._due:
            return
        self._due[key] = time.monotonic()
        if key not in self._busy:
            self._ready.release()
        QUEUE_LENGTH.set(len(self._due))

    @property
    def oldest_seconds(self) -> float:
        """How long the first job of the queue has been waiting."""
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
            requeue_after = await self._reconcile_once(key)
            loop = asyncio.get_running_loop()
            if requeue_after is not None:
                self._timers[key] = loop.call_later(requeue_after, self._requeue, key)
            loop.call_later(self._cooldowns.get(key, _COOLDOWN_SECONDS), self._end_cooldown, key)

    async def _reconcile_once(self, key: JobKey) -> float | None:
        try:
            requeue_after = await self._reconcile(key)
        except (ClusterError, NotLeaderError) as problem:
            _log.warning("%s/%s: %s", *key, problem)
            return self._backoff(key, problem)
        except Exception as problem:
            # A bug that one job triggers must not stop the others.
            _log.exception("%s/%s: reconcile failed", *key)
            return self._backoff(key, problem)
        self._failures.pop(key, None)
        return requeue_after

    def _backoff(self, key: JobKey, problem: Exception) -> float:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        backoff = _FIRST_BACKOFF_SECONDS * 2.0 ** min(failures - 1, 16)
        backoff = min(backoff, _LONGEST_BACKOFF_SECONDS)
        asked = problem.retry_after if isinstance(problem, UnavailableError) else None
        return max(asked or 0.0, backoff * random.uniform(0.5, 1.0))

    def _end_cooldown(self, key: JobKey) -> None:
        self._busy.discard(key)
        if key in self._due:
            cooldown = 2 * self._cooldowns.get(key, _COOLDOWN_SECONDS)
            self._cooldowns[key] = min(cooldown, _LONGEST_COOLDOWN_SECONDS)
            self._ready.release()
        else:
            self._cooldowns.pop(key, None)

    def _requeue(self, key: JobKey) -> None:
        self._timers.pop(key, None)
        self.enqueue(key)
