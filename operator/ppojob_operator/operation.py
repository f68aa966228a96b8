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
from ppojob_operator.supervisor import SupervisorPoller

_log = logging.getLogger(__name__)
_STALLED_SECONDS = 180.0
_STUCK_SECONDS = 120.0
_COUNT_SECONDS = 5.0


class Operation:
    """One replica of the operator."""

    def __init__(self, cluster: Cluster, settings: Settings) -> None:
        self._cluster = cluster
        self._has_ended = False
        self._settings = settings
        self.leadership = Leadership(cluster, settings, self._enqueue_all)
        self.queue = JobQueue(self._reconcile, settings.workers)
        self.cache = Cache(self.queue.enqueue)
        fenced = cluster.fenced(self.leadership.check)
        self._reconciler = Reconciler(fenced, self.cache, settings)
        self._supervisors = SupervisorPoller(self.cache, settings.poll_seconds)
        self.reflectors = tuple(self._make_reflectors())

    def on_job_event(self, type_: str | None, manifest: Manifest) -> None:
        """Handle an event of the PPOJob stream: `DELETED`, or any other type."""
        if type_ == "DELETED":
            self.cache.remove_job(manifest["metadata"]["uid"])
        else:
            self.cache.update_job(manifest)

    async def run(self) -> None:
        """Operate until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for reflector in self.reflectors:
                    group.create_task(reflector.run())
                await asyncio.gather(*(reflector.is_synced.wait() for reflector in self.reflectors))
                await self._list_jobs()
                group.create_task(self.queue.run())
                group.create_task(self.leadership.run())
                group.create_task(self._supervisors.run())
                group.create_task(self._resync())
                group.create_task(self._count())
        except Exception:
            # The liveness probe fails from now on.
            _log.exception("the operator has stopped")
        finally:
            self._has_ended = True

    def health_errors(self) -> list[str]:
        """Why this replica should be restarted; empty while it is healthy."""
        now = time.monotonic()
        errors = [
            f"{reflector.kind.plural}: no answer of the API server for {silence:.0f} s"
            for reflector in self.reflectors
            if (silence := now - reflector.last_heard) > _STALLED_SECONDS
        ]
        if self._has_ended:
            errors.append("it has stopped after an error; see the log")
        if self.leadership.is_held and self.queue.oldest_seconds > _STUCK_SECONDS:
            errors.append(f"a job has been in the queue for {self.queue.oldest_seconds:.0f} s")
        return errors

    def _make_reflectors(self) -> Iterator[Reflector]:
        cluster, cache, gangs = self._cluster, self.cache, self.cache.gangs
        yield Reflector(cluster, kinds.NODE, cache.update_node, cache.remove_node, is_optional=True)
        # A gang scheduler may be installed or removed while the operator runs.
        ways = self._settings.gangs
        for namespace in self._settings.watch_namespaces or ("",):
            of_jobs = functools.partial(Reflector, cluster, namespace=namespace, selector=LABEL_JOB)
            yield of_jobs(kinds.POD, cache.update_pod, cache.remove)
            for name in kinds.WATCHED_CHILD_KINDS:
                yield of_jobs(kinds.CHILD_KINDS[name], cache.update_child, cache.remove)
            for kind in (kind for way in ways for kind in GANGS[way].kinds):
                yield of_jobs(
                    kinds.GANG_KINDS[kind],
                    cache.update_child,
                    cache.remove,
                    is_optional=True,
                    on_served=functools.partial(gangs.update_served, kind, namespace),
                )
        if "kueue" in ways:
            for kueues, see in (
                (kinds.FLAVOR, gangs.update_flavor),
                (kinds.PRIORITY, gangs.update_priority),
            ):
                yield Reflector(cluster, kueues, see, gangs.remove, is_optional=True)

    async def _reconcile(self, key: JobKey) -> float | None:
        if not self.leadership.is_held:
            # A new leader reconciles every job.
            return None
        return await self._reconciler.reconcile(key)

    def _enqueue_all(self) -> None:
        for key in self.cache.job_keys():
            self.queue.enqueue(key)

    async def _resync(self) -> None:
        """Reconcile every job at a fixed interval, whatever events were delivered."""
        while True:
            await asyncio.sleep(self._settings.resync_seconds)
            try:
                await self._list_jobs()
            except ClusterError as problem:
                _log.warning("resync: %s", problem)
            self._enqueue_all()

    async def _list_jobs(self) -> None:
        """List the jobs, to find changes that the event stream missed, deletions above all."""
        before = set(self.cache.job_keys())
        there: set[JobKey] = set()
        for namespace in self._settings.watch_namespaces or ("",):
            async for page in self._cluster.pages(kinds.JOB, namespace, ""):
                for item in page.items:
                    there.add((item["metadata"]["namespace"], item["metadata"]["name"]))
                    self.cache.update_job(item)
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
    """Run an operator inside a `with`; it has released its Lease at the end."""
    operation = Operation(cluster, settings)
    task = asyncio.create_task(operation.run())
    try:
        yield operation
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
