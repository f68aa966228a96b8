"""The running operator: reflectors, work queue and leader election, put together."""

import asyncio
import functools
import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import get_args

from ppojob_api.v1alpha1.status import Phase
from ppojob_api.well_known import LABEL_JOB
from ppojob_operator import kinds
from ppojob_operator.build.gang import GANGS
from ppojob_operator.cache import Cache
from ppojob_operator.cluster import Cluster
from ppojob_operator.errors import ClusterError
from ppojob_operator.job_queue import JobQueue
from ppojob_operator.leadership import Leadership
from ppojob_operator.metrics import JOBS
from ppojob_operator.reading import JobKey
from ppojob_operator.reconcile import Reconciler
from ppojob_operator.reflector import Reflector
from ppojob_operator.settings import Settings
from ppojob_operator.state import Manifest
from ppojob_operator.supervisor import Supervisors

_log = logging.getLogger(__name__)
_DEAF_SECONDS = 180.0
_STUCK_SECONDS = 120.0
_COUNT_SECONDS = 5.0


class Operation:
    """One replica of the operator."""

    def __init__(self, cluster: Cluster, settings: Settings) -> None:
        self._cluster = cluster
        self._has_ended = False
        self._settings = settings
        self.leadership = Leadership(cluster, settings, self._wake_all)
        self.queue = JobQueue(self._look, settings.workers)
        self.cache = Cache(self.queue.wake)
        fenced = cluster.fenced(self.leadership.check)
        self._reconciler = Reconciler(fenced, self.cache, settings)
        self._supervisors = Supervisors(self.cache, settings.poll_seconds)
        self.reflectors = tuple(self._make_reflectors())

    def see_job(self, kind: str | None, manifest: Manifest) -> None:
        """Take in an event of the PPOJob stream: `DELETED`, or anything else."""
        if kind == "DELETED":
            self.cache.lose_job(manifest["metadata"]["uid"])
        else:
            self.cache.see_job(manifest)

    async def run(self) -> None:
        """Operate until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for reflector in self.reflectors:
                    group.create_task(reflector.run())
                await asyncio.gather(*(one.is_synced.wait() for one in self.reflectors))
                await self._list_jobs()
                group.create_task(self.queue.run())
                group.create_task(self.leadership.run())
                group.create_task(self._supervisors.run())
                group.create_task(self._resync())
                group.create_task(self._count())
        except Exception:
            # The liveness probe does the rest.
            _log.exception("the operator has ended")
        finally:
            self._has_ended = True

    def troubles(self) -> list[str]:
        """Why this replica should be started again; empty while it is well."""
        now = time.monotonic()
        found = [
            f"{one.kind.plural}: the API server was not heard for {now - one.last_heard:.0f} s"
            for one in self.reflectors
            if now - one.last_heard > _DEAF_SECONDS
        ]
        if self._has_ended:
            found.append("it has ended by an error; see the log")
        if self.leadership.is_held and self.queue.oldest_seconds > _STUCK_SECONDS:
            found.append(f"a job has been waiting for {self.queue.oldest_seconds:.0f} s")
        return found

    def _make_reflectors(self) -> Iterator[Reflector]:
        cluster, cache, gangs = self._cluster, self.cache, self.cache.gangs
        yield Reflector(cluster, kinds.NODE, cache.see_node, cache.lose_node, is_optional=True)
        # What places pods together may be installed, or go, while the operator runs.
        ways = self._settings.gangs
        for namespace in self._settings.watch_namespaces or ("",):
            of_jobs = functools.partial(Reflector, cluster, namespace=namespace, selector=LABEL_JOB)
            yield of_jobs(kinds.POD, cache.see_pod, cache.lose)
            for name in kinds.WATCHED_CHILD_KINDS:
                yield of_jobs(kinds.CHILD_KINDS[name], cache.see_child, cache.lose)
            for kind in (kind for way in ways for kind in GANGS[way].kinds):
                yield of_jobs(
                    kinds.GANG_KINDS[kind],
                    cache.see_child,
                    cache.lose,
                    is_optional=True,
                    served=functools.partial(gangs.see_served, kind, namespace),
                )
        if "kueue" in ways:
            for kueues, see in (
                (kinds.FLAVOR, gangs.see_flavor),
                (kinds.PRIORITY, gangs.see_priority),
            ):
                yield Reflector(cluster, kueues, see, gangs.lose, is_optional=True)

    async def _look(self, key: JobKey) -> float | None:
        if not self.leadership.is_held:
            # Whoever begins to lead looks at every job.
            return None
        return await self._reconciler.reconcile(key)

    def _wake_all(self) -> None:
        for key in self.cache.job_keys():
            self.queue.wake(key)

    async def _resync(self) -> None:
        """Look at everything now and then, whatever events said: the net below all others."""
        while True:
            await asyncio.sleep(self._settings.resync_seconds)
            try:
                await self._list_jobs()
            except ClusterError as problem:
                _log.warning("resync: %s", problem)
            self._wake_all()

    async def _list_jobs(self) -> None:
        """Find what the stream of jobs has missed, deletions most of all."""
        before = set(self.cache.job_keys())
        there: set[JobKey] = set()
        for namespace in self._settings.watch_namespaces or ("",):
            async for page in self._cluster.pages(kinds.JOB, namespace, ""):
                for item in page.items:
                    there.add((item["metadata"]["namespace"], item["metadata"]["name"]))
                    self.cache.see_job(item)
        for key in before - there:
            self.cache.forget_job(key)

    async def _count(self) -> None:
        while True:
            counts = self.cache.phases()
            for phase in get_args(Phase):
                JOBS.labels(phase).set(counts.get(phase, 0))
            await asyncio.sleep(_COUNT_SECONDS)


@asynccontextmanager
async def running(cluster: Cluster, settings: Settings) -> AsyncIterator[Operation]:
    """An operator that runs inside a `with`, and has given up its Lease behind it."""
    operation = Operation(cluster, settings)
    task = asyncio.create_task(operation.run())
    try:
        yield operation
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
