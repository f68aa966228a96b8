"""Reconciler of a job: observes, plans, executes the plan, and writes the status.

Every action is idempotent, so a plan that failed halfway is planned and executed again.
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
from ppojob_operator.policies.pods_ready import (
    MAY_BE_DENIED,
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
    CreateKeys,
    Delete,
    Job,
    Manifest,
    Observed,
    Plan,
    RecordEvent,
    ReleaseQuota,
    Time,
)

_DENIALS = "involvedObject.kind=StatefulSet,reason=FailedCreate"
_WRITING = CreateKeys | Create | Apply
"""Actions that depend on those of earlier waves, and are skipped after a failure."""


class Reconciler:
    """Brings each job to its desired state."""

    def __init__(self, cluster: Cluster, cache: Cache, settings: Settings) -> None:
        self._cluster = cluster
        self._cache = cache
        self._settings = settings
        self._without_status: set[str] = set()
        self._denied: dict[JobKey, tuple[float, Mapping[RoleName, str]]] = {}

    async def reconcile(self, key: JobKey) -> float | None:
        """Reconcile a job once; returns the seconds until the next reconcile, or None.

        Raises:
            ClusterError: a request failed.
        """
        started = time.monotonic()
        outcome = "failed"
        try:
            # 1. Fetch, from the cache: an unchanged job costs no request.
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
            if _creates(planned) and not self._is_new(job) and not await self._still_exists(job):
                # Its objects existed before: they may have been garbage-collected with the job.
                outcome = "gone"
                self._without_status.discard(job.uid)
                self._cache.forget_job(key)
                return None
            # 4. Execute.
            failed = await self._execute(job, planned, now)
            # 5. Write the status once, also after a failure: it may contain the reason.
            if self._is_new(job) and _creates(planned) and not failed:
                # A status write costs the API server as much as creating five objects. The first
                # one of a new job waits until the objects of all other new jobs are created.
                self._without_status.add(job.uid)
                outcome = "changed"
                return 0.0
            await self._write_status(job, planned)
            self._without_status.discard(job.uid)
            _observe_metrics(job, planned)
            if failed:
                raise failed[0]
            outcome = "changed" if planned.waves or planned.status else "unchanged"
            return planned.requeue_after
        except MissingError:
            # `_attempt` ignores missing objects, so the job itself was deleted.
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
        """Whether no object was created for the job yet."""
        return job.status.start_time is None and job.uid not in self._without_status

    async def _still_exists(self, job: Job) -> bool:
        """Ask the API server whether the job exists: the cache may have missed its deletion."""
        try:
            found = await self._cluster.get(JOB, job.namespace, job.name)
        except MissingError:
            return False
        metadata = found["metadata"]
        return bool(metadata["uid"] == job.uid and "deletionTimestamp" not in metadata)

    async def _denials(self, job: Job, seen: Observed, since: str) -> Mapping[RoleName, str]:
        """Why pods are not created; asked for at most once per `MISSING_SECONDS`."""
        asked, known = self._denied.get(job.key, (0.0, {}))
        if asked and time.monotonic() - asked < MISSING_SECONDS:
            return known
        found = await self._ask_denials(job, seen, since)
        self._denied[job.key] = (time.monotonic(), found)
        return found

    async def _ask_denials(self, job: Job, seen: Observed, since: str) -> dict[RoleName, str]:
        """The messages of the StatefulSet controller, such as an exceeded quota, from its Events.

        Events exist for an hour; those from before the pods were last ready do not count.
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
                    time_ = event_time(event)
                    if role is not None and time_ >= since.rstrip("Z"):
                        found.append((time_, role, event.get("message", "")))
        except ClusterError:
            # The rest of the status is written without it.
            return {}
        return {role: message for _, role, message in sorted(found)}

    async def _execute(self, job: Job, plan: Plan, now: Time) -> list[ClusterError]:
        """Execute the waves of a plan; returns the failures.

        After a failed wave nothing more is created or applied. Deletions are still executed: a
        refused object must not prevent a job from stopping, nor the deletion of lost pods.
        """
        failed: list[ClusterError] = []
        for wave in plan.waves:
            due = [one for one in wave if not failed or not isinstance(one, _WRITING)]
            results = await asyncio.gather(*(self._attempt(job, action, now) for action in due))
            failed += [error for error in results if error is not None]
        return failed

    async def _write_status(self, job: Job, plan: Plan) -> None:
        """Write the status; refused if the job changed since it was read.

        Raises:
            ClusterError: the request failed.
        """
        if plan.status is None:
            return
        head = {"name": job.name, "namespace": job.namespace, "uid": job.uid}
        answer = await self._cluster.apply_status(
            {
                "apiVersion": API_VERSION,
                "kind": KIND,
                # Fences writes that were planned from an older version of the job.
                "metadata": {**head, "resourceVersion": job.resource_version},
                "status": plan.status.model_dump(
                    mode="json", by_alias=True, exclude_none=True, exclude={"training"}
                ),
            }
        )
        self._cache.update_job(answer)

    async def _attempt(self, job: Job, action: Action, now: Time) -> ClusterError | None:
        try:
            await self._act(job, action, now)
        except MissingError:
            # The object to change or delete does not exist; the cache will be updated.
            return None
        except ClusterError as problem:
            if isinstance(problem, RefusedError) and isinstance(action, _WRITING):
                self._cache.record_refusal(job, action.manifest, str(problem))
            return problem
        return None

    async def _act(self, job: Job, action: Action, now: Time) -> None:
        match action:
            case Create(manifest):
                answer = await self._create(job, manifest)
                self._cache.record_write(job.key, answer, manifest)
            case Apply(manifest, uid):
                answer = await self._cluster.apply(manifest, uid)
                self._cache.record_write(job.key, answer, manifest)
            case ApplyStatus(manifest, uid):
                metadata = {**manifest["metadata"], "uid": uid}
                answer = await self._cluster.apply_status({**manifest, "metadata": metadata})
                self._cache.update_child(answer)
            case ReleaseQuota(name, uid):
                await self._release_quota(job, name, uid, now)
            case Delete(kind, name, uid, force):
                if kind == POD.name:
                    metrics.POD_DELETIONS.labels(str(force).lower()).inc()
                grace = 0 if force else None
                await self._cluster.delete(kind_of_child(kind), job.namespace, name, uid, grace)
            case CreateKeys(templates):
                await self._create_keys(job, dict(templates))
                self._cache.clear_refusal(job.key, action.manifest)
            case RecordEvent():
                await self._record_event(job, action, now)

    async def _release_quota(self, job: Job, name: str, uid: str, now: Time) -> None:
        """Remove the admission from a Workload: Kueue owns the field, so replace the status."""
        found = await self._cluster.get(GANG_KINDS[kueue.KIND], job.namespace, name)
        if found["metadata"]["uid"] == uid:
            released = kueue.released(found, rfc3339(now))
            self._cache.update_child(await self._cluster.replace(released, "/status"))

    async def _create(self, job: Job, manifest: Manifest) -> Manifest:
        """Create an object; returns it, or the existing object of the job."""
        try:
            return await self._cluster.create(manifest)
        except ConflictError:
            # A lost answer, a stale cache, or an object of somebody else.
            return await self._own_object(job, manifest)
        except MissingError as problem:
            # A RoleBinding was refused: the authorizer does not know the new Role yet.
            raise UnavailableError(str(problem)) from problem

    async def _own_object(self, job: Job, manifest: Manifest) -> Manifest:
        """Return the existing object of this name if it belongs to this job.

        Raises:
            UnavailableError: it belongs to an earlier job of this name and is being deleted, or it
                was just deleted.
            RefusedError: it belongs to somebody else.
        """
        kind, name = kind_of(manifest), manifest["metadata"]["name"]
        try:
            found = await self._cluster.get(kind, job.namespace, name)
        except MissingError as problem:
            raise UnavailableError(f"{kind.name} {name} existed and was just deleted") from problem
        if is_of(job, found["metadata"]):
            return found
        owners = found["metadata"].get("ownerReferences") or ()
        if any((owner["kind"], owner["name"]) == (KIND, job.name) for owner in owners):
            raise UnavailableError(f"{kind.name} {name} of an earlier job is still being deleted")
        why = "already exists and does not belong to this job"
        if kind.name == "PersistentVolumeClaim":
            why += f"; use it with checkpoint.volume.claimName: {name}, or rename the job"
            if LABEL_JOB_UID in (found["metadata"].get("labels") or {}):
                why = (
                    "holds the run of an earlier job (whenDeleted: Retain); delete it with kubectl "
                    f"delete pvc {name}, or rename the job"
                )
        raise RefusedError(f"{kind.name} {name} {why}")

    async def _create_keys(self, job: Job, templates: dict[RoleName, Manifest]) -> None:
        """Create missing Secrets; the controller's is created first and holds the keys of all."""
        controllers = templates.pop("controller")
        # Generated here, so that no pod needs permission to create Secrets; for all possible roles,
        # so that keys in use stay when a job gets other roles later.
        pairs: KeyPairs = {role: key_pair() for role in ROLE_SLUGS}
        pairs = read_pairs(await self._create(job, secret(controllers, "controller", pairs)))
        if missing := sorted(templates.keys() - pairs.keys()):
            raise RefusedError(
                f"Secret {controllers['metadata']['name']} was created by an older operator and has"
                f" no key for {', '.join(missing)}; suspend the job and delete its Secrets"
            )
        await asyncio.gather(
            *(self._create(job, secret(one, role, pairs)) for role, one in templates.items())
        )

    async def _record_event(self, job: Job, event: RecordEvent, now: Time) -> None:
        identity = f"{job.uid}/{job.resource_version}/{event.reason}/{event.message}"
        name = f"{job.name}.{hashlib.sha256(identity.encode()).hexdigest()[:16]}"
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
            # Written before, by a reconcile whose status write failed.
            return


def key_pair() -> tuple[str, str]:
    """Generate a CURVE key pair: public and secret key, 40 letters of Z85 each."""
    public, secret_key = zmq.curve_keypair()
    return public.decode("ascii"), secret_key.decode("ascii")


def _misses_pods_since(job: Job, status: PPOJobStatus, seen: Observed) -> str | None:
    """When pods stopped being ready, RFC 3339, if the reason may be that some are not created."""
    ready = condition(status, "PodsReady")
    if ready is None or ready.reason not in MAY_BE_DENIED:
        return None
    roles = accepted_pods(dataclasses.replace(job, status=status))
    return ready.last_transition_time if missing_pods(roles, seen) else None


def _creates(planned: Plan) -> bool:
    return any(isinstance(one, Create) for wave in planned.waves for one in wave)


def _outcome(problem: ClusterError | NotLeaderError) -> str:
    if isinstance(problem, NotLeaderError):
        return "fenced"
    if isinstance(problem, UnavailableError):
        return "unavailable"
    return "conflict" if isinstance(problem, ConflictError) else "refused"


def _begins(job: Job, after: PPOJobStatus, name: ConditionType) -> bool:
    """Whether a condition becomes true for the first time, before the first step."""
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
