"""One job, brought nearer to what it is to be."""

import datetime
import time

from ppojob_api.v1alpha1.status import PPOJobStatus
from ppojob_operator.cache import Cache
from ppojob_operator.cluster import Cluster
from ppojob_operator.conditions import ConditionType, holds
from ppojob_operator.errors import (
    ClusterError,
    ConflictError,
    MissingError,
    NotLeaderError,
    UnavailableError,
)
from ppojob_operator.execute import Executor
from ppojob_operator.kinds import JOB
from ppojob_operator.metrics import (
    FIRST_STEP_SECONDS,
    PODS_READY_SECONDS,
    RECONCILE_SECONDS,
    RECONCILES,
    RESTARTS,
)
from ppojob_operator.plan import plan
from ppojob_operator.reading import JobKey
from ppojob_operator.settings import Settings
from ppojob_operator.state import Create, Job, Plan


class Reconciler:
    """Brings jobs to what they are to be."""

    def __init__(self, cluster: Cluster, cache: Cache, settings: Settings) -> None:
        self._cluster = cluster
        self._executor = Executor(cluster, cache)
        self._cache = cache
        self._settings = settings
        self._begun: set[str] = set()

    async def reconcile(self, key: JobKey) -> float | None:
        """Look at a job once; answers when to look again, or None.

        Raises:
            ClusterError: something could not be done now.
        """
        started = time.monotonic()
        outcome = "failed"
        try:
            # 1. Fetch: from memory, for an unchanged job must not cost a request.
            job = self._cache.job(key)
            if job is None:
                outcome = "gone"
                return None
            # 2. Observe.
            seen = self._cache.observed(key, job.uid)
            # 3. Plan.
            now = datetime.datetime.now(datetime.UTC)
            planned = plan(job, seen, self._settings, now)
            if _makes(planned) and not self._is_new(job) and not await self._is_there(job):
                # They were there before: perhaps they are being collected.
                outcome = "gone"
                self._begun.discard(job.uid)
                self._cache.forget_job(key)
                return None
            # 4. Execute.
            failed = await self._executor.execute(job, planned, now)
            # 5. One status write, also when something failed: it may say why.
            if self._is_new(job) and _makes(planned) and not failed:
                # A write of a job costs the API server as much as five of its objects. So that of a
                # new one waits until those of all that have come with it are made.
                self._begun.add(job.uid)
                outcome = "changed"
                return 0.0
            await self._executor.write_status(job, planned)
            self._begun.discard(job.uid)
            _count(job, planned)
            if failed:
                raise failed[0]
            outcome = "changed" if planned.waves or planned.status else "unchanged"
            return planned.again_in
        except MissingError:
            # Deletions of what is gone are none; so it is the job, and its status has no place.
            outcome = "gone"
            self._cache.forget_job(key)
            return None
        except (ClusterError, NotLeaderError) as problem:
            outcome = _outcome(problem)
            raise
        finally:
            RECONCILES.labels(outcome).inc()
            RECONCILE_SECONDS.observe(time.monotonic() - started)

    def _is_new(self, job: Job) -> bool:
        """Whether nothing was made for the job yet."""
        return job.status.start_time is None and job.uid not in self._begun

    async def _is_there(self, job: Job) -> bool:
        """Whether the job still is the one that we know: its deletion may have been missed."""
        try:
            found = await self._cluster.get(JOB, job.namespace, job.name)
        except MissingError:
            return False
        metadata = found["metadata"]
        return bool(metadata["uid"] == job.uid and "deletionTimestamp" not in metadata)


def _makes(planned: Plan) -> bool:
    """Whether objects are to be made that are not there."""
    return any(isinstance(one, Create) for wave in planned.waves for one in wave)


def _outcome(problem: ClusterError | NotLeaderError) -> str:
    if isinstance(problem, NotLeaderError):
        return "fenced"
    if isinstance(problem, UnavailableError):
        return "unavailable"
    return "conflict" if isinstance(problem, ConflictError) else "refused"


def _begins(job: Job, after: PPOJobStatus, name: ConditionType) -> bool:
    """Whether a condition holds from now on, of a job that has not made any step before."""
    is_new = holds(after, name) and not holds(job.status, name)
    return is_new and job.status.phase in {"Pending", "Starting"}


def _count(job: Job, planned: Plan) -> None:
    after = planned.status
    if after is None:
        return
    age = (datetime.datetime.now(datetime.UTC) - job.created).total_seconds()
    if _begins(job, after, "PodsReady"):
        PODS_READY_SECONDS.observe(age)
    if _begins(job, after, "Training") and not job.status.restarts:
        FIRST_STEP_SECONDS.observe(age)
    known = {(record.uid, record.restart) for record in job.status.failures}
    for record in after.failures:
        if (record.uid, record.restart) not in known:
            RESTARTS.labels(record.role, record.kind).inc()
