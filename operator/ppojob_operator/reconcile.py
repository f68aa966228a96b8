"""Reconciler of one job: observes, plans, executes, and writes the status.

Every action is idempotent, and a plan may be executed partly.
"""

import asyncio
import dataclasses
import datetime
import hashlib
import time
from collections.abc import Mapping

import zmq

from ppojob_api.v1alpha1.status import PPOJobStatus
from ppojob_api.well_known import API_VERSION, KIND, ROLE_SLUGS, RoleName
from ppojob_operator import metrics
from ppojob_operator.build import kueue
from ppojob_operator.build.metadata import LABEL_JOB_UID, is_of, role_of
from ppojob_operator.build.objects import KeyPairs, read_pairs, secret
from ppojob_operator.cache import Cache
from ppojob_operator.changes import made
from ppojob_operator.cluster import FIELD_MANAGER, Cluster
from ppojob_operator.conditions import ConditionType, condition, event_time, holds, rfc3339
from ppojob_operator.errors import (
    ClusterError,
    ConflictError,
    MissingError,
    NotLeaderError,
    RefusedError,
    UnavailableError,
)
from ppojob_operator.kinds import EVENT, GANG_KINDS, JOB, POD, kind_of, kind_of_child
from ppojob_operator.plan import plan
from ppojob_operator.policies.startup import (
    LESSER_THAN_DENIED,
    MISSING_SECONDS,
    accepted_pods,
    missing_pods,
)
from ppojob_operator.reading import JobKey
from ppojob_operator.settings import Settings
from ppojob_operator.state import (
    Action,
    Apply,
    ApplyStatus,
    Create,
    Delete,
    DeleteJob,
    DeletePod,
    Emit,
    Job,
    MakeKeys,
    Manifest,
    Observed,
    Plan,
    ReleaseQuota,
    Time,
)

_DENIALS = "involvedObject.kind=StatefulSet,reason=FailedCreate"
_MAKING = MakeKeys | Create | Apply
"""Actions that depend on those of earlier waves."""


class Reconciler:
    """Brings jobs to what they are to be."""

    def __init__(self, cluster: Cluster, cache: Cache, settings: Settings) -> None:
        self._cluster = cluster
        self._cache = cache
        self._settings = settings
        self._begun: set[str] = set()
        self._denied: dict[JobKey, tuple[float, Mapping[RoleName, str]]] = {}

    async def reconcile(self, key: JobKey) -> float | None:
        """Reconcile a job once; returns the seconds until the next time, or None.

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
                self._denied.pop(key, None)
                return None
            # 2. Observe.
            seen = self._cache.observed(key, job.uid)
            # 3. Plan.
            now = datetime.datetime.now(datetime.UTC)
            planned = plan(job, seen, self._settings, now)
            if since := _misses_pods_since(job, planned.status or job.status, seen):
                seen = dataclasses.replace(seen, denials=await self._denials(job, seen, since))
                planned = plan(job, seen, self._settings, now)
            if _makes(planned) and not self._is_new(job) and not await self._is_there(job):
                # They were there before: perhaps they are being collected.
                outcome = "gone"
                self._begun.discard(job.uid)
                self._cache.forget_job(key)
                return None
            # 4. Execute.
            failed = await self._execute(job, planned, now)
            # 5. One status write, also when something failed: it may say why.
            if self._is_new(job) and _makes(planned) and not failed:
                # A write of a job costs the API server as much as five of its objects. So that of a
                # new one waits until those of all that have come with it are made.
                self._begun.add(job.uid)
                outcome = "changed"
                return 0.0
            await self._write_status(job, planned)
            self._begun.discard(job.uid)
            _observe_metrics(job, planned)
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
            metrics.RECONCILES.labels(outcome).inc()
            metrics.RECONCILE_SECONDS.observe(time.monotonic() - started)

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

    async def _denials(self, job: Job, seen: Observed, since: str) -> Mapping[RoleName, str]:
        """Why pods are not made; not asked for with each of many pods that come late."""
        asked, known = self._denied.get(job.key, (0.0, {}))
        if asked and time.monotonic() - asked < MISSING_SECONDS:
            return known
        found = await self._ask_denials(job, seen, since)
        self._denied[job.key] = (time.monotonic(), found)
        return found

    async def _ask_denials(self, job: Job, seen: Observed, since: str) -> dict[RoleName, str]:
        """A quota, say: the controller of StatefulSets tells it in Events alone.

        Events stay for an hour: what was told before the pods were last ready is over.
        """
        sets = {
            child.uid: role_of(child.manifest["metadata"]["labels"])
            for (kind, _), child in seen.children.items()
            if kind == "StatefulSet"
        }
        found: list[tuple[str, RoleName, str]] = []
        try:
            async for page in self._cluster.pages(EVENT, job.namespace, "", _DENIALS):
                for event in page.items:
                    role = sets.get(event["involvedObject"].get("uid", ""))
                    told = event_time(event)
                    if role is not None and told >= since.rstrip("Z"):
                        found.append((told, role, event.get("message", "")))
        except ClusterError:
            # The rest of the status is as true without it.
            return {}
        return {role: words for _, role, words in sorted(found)}

    async def _execute(self, job: Job, plan: Plan, now: Time) -> list[ClusterError]:
        """Execute the waves of a plan; returns the failures.

        After a failed wave nothing more is created. Deletions are executed all the same: a refused
        object must not keep a job from stopping, nor a dead node's pods in place.
        """
        self._cache.keep_refusals(job.key, made(plan.waves))
        failed: list[ClusterError] = []
        for wave in plan.waves:
            due = [one for one in wave if not failed or not isinstance(one, _MAKING)]
            ends = await asyncio.gather(*(self._attempt(job, action, now) for action in due))
            failed += [end for end in ends if end is not None]
        return failed

    async def _write_status(self, job: Job, plan: Plan) -> None:
        """Write the status, unless the job has been written to since it was read.

        Raises:
            ClusterError: it could not be written.
        """
        if plan.status is None:
            return
        head = {"name": job.name, "namespace": job.namespace, "uid": job.uid}
        answer = await self._cluster.apply_status(
            {
                "apiVersion": API_VERSION,
                "kind": KIND,
                # The fence against a write that was planned long ago, by whoever.
                "metadata": {**head, "resourceVersion": job.resource_version},
                "status": plan.status.model_dump(
                    mode="json", by_alias=True, exclude_none=True, exclude={"training"}
                ),
            }
        )
        self._cache.see_job(answer)

    async def _attempt(self, job: Job, action: Action, now: Time) -> ClusterError | None:
        try:
            await self._act(job, action, now)
        except MissingError:
            # What was to be changed or deleted is gone; the cache will say so.
            return None
        except ClusterError as problem:
            if isinstance(problem, RefusedError) and isinstance(action, _MAKING):
                self._cache.refuse(job, action.manifest, str(problem))
            return problem
        return None

    async def _act(self, job: Job, action: Action, now: Time) -> None:
        match action:
            case Create(manifest):
                answer = await self._create(job, manifest)
                self._cache.see_answer(job.key, answer, manifest)
            case Apply(manifest, uid):
                answer = await self._cluster.apply(manifest, uid)
                self._cache.see_answer(job.key, answer, manifest)
            case ApplyStatus(manifest, uid):
                metadata = {**manifest["metadata"], "uid": uid}
                answer = await self._cluster.apply_status({**manifest, "metadata": metadata})
                self._cache.see_child(answer)
            case ReleaseQuota(name, uid):
                await self._release_quota(job, name, uid, now)
            case Delete(kind, name, uid):
                await self._cluster.delete(kind_of_child(kind), job.namespace, name, uid)
            case DeletePod(name, uid, force):
                metrics.POD_DELETIONS.labels(str(force).lower()).inc()
                grace = 0 if force else None
                await self._cluster.delete(POD, job.namespace, name, uid, grace)
            case DeleteJob():
                await self._cluster.delete(JOB, job.namespace, job.name, job.uid)
            case MakeKeys(templates):
                await self._make_keys(job, dict(templates))
                self._cache.accept(job.key, action.manifest)
            case Emit():
                await self._emit(job, action, now)

    async def _release_quota(self, job: Job, name: str, uid: str, now: Time) -> None:
        """Take the admission out of a Workload: written by others, so read and written whole."""
        found = await self._cluster.get(GANG_KINDS[kueue.KIND], job.namespace, name)
        if found["metadata"]["uid"] == uid:
            released = kueue.released(found, rfc3339(now))
            self._cache.see_child(await self._cluster.replace(released, "/status"))

    async def _create(self, job: Job, manifest: Manifest) -> Manifest:
        """Create an object; returns it, or the job's existing one."""
        try:
            return await self._cluster.create(manifest)
        except ConflictError:
            # A write whose answer was lost, a cache that lags, or an object of somebody else.
            return await self._own_object(job, manifest)
        except MissingError as problem:
            # What it refers to: an API server does not know at once of a Role that it has taken.
            raise UnavailableError(str(problem)) from problem

    async def _own_object(self, job: Job, manifest: Manifest) -> Manifest:
        """Return the object that has the name already, if it is this job's.

        Raises:
            UnavailableError: an earlier job of this name left it, and it will go, or it has gone
                since.
            RefusedError: it is somebody else's.
        """
        kind, name = kind_of(manifest), manifest["metadata"]["name"]
        try:
            found = await self._cluster.get(kind, job.namespace, name)
        except MissingError as problem:
            raise UnavailableError(f"{kind.name} {name} was there, and is gone") from problem
        if is_of(job, found["metadata"]):
            return found
        owners = found["metadata"].get("ownerReferences") or ()
        if any((owner["kind"], owner["name"]) == (KIND, job.name) for owner in owners):
            raise UnavailableError(f"{kind.name} {name} of an earlier job is not gone yet")
        whose = "is there already and is not this job's"
        if kind.name == "PersistentVolumeClaim":
            whose += f"; volume.claimName: {name} for a run on it, or a job of another name"
            if LABEL_JOB_UID in (found["metadata"].get("labels") or {}):
                whose = (
                    "holds an earlier job's run, which was to be kept; delete it with kubectl "
                    f"delete pvc {name}, or make a job of another name"
                )
        raise RefusedError(f"{kind.name} {name} {whose}")

    async def _make_keys(self, job: Job, templates: dict[RoleName, Manifest]) -> None:
        """Create missing Secrets; the first write decides the keys of all."""
        controllers = templates.pop("controller")
        # Made here, so that no pod needs a right to make Secrets; for all roles that there are, so
        # that a job may have others later without that keys in use are replaced.
        pairs: KeyPairs = {role: key_pair() for role in ROLE_SLUGS}
        pairs = read_pairs(await self._create(job, secret(controllers, "controller", pairs)))
        if missing := sorted(templates.keys() - pairs.keys()):
            raise RefusedError(
                f"Secret {controllers['metadata']['name']} is of an operator that made fewer keys,"
                f" none for {', '.join(missing)}; suspend the job and delete its Secrets"
            )
        await asyncio.gather(
            *(self._create(job, secret(one, role, pairs)) for role, one in templates.items())
        )

    async def _emit(self, job: Job, event: Emit, now: Time) -> None:
        told = f"{job.uid}/{job.resource_version}/{event.reason}/{event.message}"
        name = f"{job.name}.{hashlib.sha256(told.encode()).hexdigest()[:16]}"
        time = rfc3339(now)
        try:
            await self._cluster.create(
                {
                    "apiVersion": "v1",
                    "kind": "Event",
                    "metadata": {"name": name, "namespace": job.namespace},
                    "involvedObject": {
                        "apiVersion": API_VERSION,
                        "kind": KIND,
                        "namespace": job.namespace,
                        "name": job.name,
                        "uid": job.uid,
                    },
                    "type": event.type,
                    "reason": event.reason,
                    "message": event.message,
                    "source": {"component": FIELD_MANAGER},
                    "reportingComponent": FIELD_MANAGER,
                    "firstTimestamp": time,
                    "lastTimestamp": time,
                    "count": 1,
                }
            )
        except ConflictError:
            # Told before, by a reconcile whose status write failed.
            return


def key_pair() -> tuple[str, str]:
    """A fresh public and secret key of CURVE, 40 letters of Z85 each."""
    public, secret_key = zmq.curve_keypair()
    return public.decode("ascii"), secret_key.decode("ascii")


def _misses_pods_since(job: Job, status: PPOJobStatus, seen: Observed) -> str | None:
    """Since when not all pods are ready, RFC 3339, where some are not made, and that may be why."""
    ready = condition(status, "PodsReady")
    if ready is None or ready.reason not in LESSER_THAN_DENIED:
        return None
    roles = accepted_pods(dataclasses.replace(job, status=status))
    return ready.last_transition_time if missing_pods(roles, seen) else None


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


def _observe_metrics(job: Job, planned: Plan) -> None:
    after = planned.status
    if after is None:
        return
    age = (datetime.datetime.now(datetime.UTC) - job.created).total_seconds()
    if _begins(job, after, "PodsReady"):
        metrics.PODS_READY_SECONDS.observe(age)
    if _begins(job, after, "Training") and not job.status.restarts:
        metrics.FIRST_STEP_SECONDS.observe(age)
    known = {(record.uid, record.restart) for record in job.status.failures}
    for record in after.failures:
        if (record.uid, record.restart) not in known:
            metrics.RESTARTS.labels(record.role, record.kind).inc()
