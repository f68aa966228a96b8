"""Carries out the actions of a plan. Every one may be carried out twice, or by half."""

import asyncio
import hashlib
from collections.abc import Awaitable

import zmq

from ppojob_api.well_known import API_VERSION, KIND, RoleName
from ppojob_operator.build import kueue
from ppojob_operator.build.keys import KeyPairs, read_pairs, secret
from ppojob_operator.cache import Cache
from ppojob_operator.changes import made
from ppojob_operator.cluster import FIELD_MANAGER, Cluster
from ppojob_operator.conditions import rfc3339
from ppojob_operator.errors import (
    ClusterError,
    ConflictError,
    MissingError,
    RefusedError,
    UnavailableError,
)
from ppojob_operator.kinds import GANG_KINDS, JOB, POD, kind_of, kind_of_child
from ppojob_operator.metrics import POD_DELETIONS
from ppojob_operator.reading import JobKey
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
    Plan,
    ReleaseQuota,
    Time,
)

_MAKING = MakeKeys | Create | Apply
"""What needs that which the waves before it make."""


class Executor:
    """Writes what plans say.

    Args:
        cache: takes in what the API server answers, so that the next plan knows of it.
    """

    def __init__(self, cluster: Cluster, cache: Cache) -> None:
        self._cluster = cluster
        self._cache = cache

    async def execute(self, job: Job, plan: Plan, now: Time) -> list[ClusterError]:
        """Carry out the waves of a plan; answers what failed.

        Behind a wave that failed nothing more is made. What is to go goes all the same: an object
        that is not taken must not keep a job from stopping, nor a dead node's pods where they are.
        """
        self._cache.keep_refusals(_key(job), made(plan.waves))
        failed: list[ClusterError] = []
        for wave in plan.waves:
            due = [one for one in wave if not (failed and isinstance(one, _MAKING))]
            ends = await asyncio.gather(*(self._attempt(job, action, now) for action in due))
            failed += [end for end in ends if end is not None]
        return failed

    async def write_status(self, job: Job, plan: Plan) -> None:
        """Write the status, unless somebody has written to the job since it was read.

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
            if isinstance(problem, RefusedError) and isinstance(action, Create | Apply):
                self._cache.refuse(job, action.manifest, str(problem))
            return problem
        return None

    def _act(self, job: Job, action: Action, now: Time) -> Awaitable[None]:
        match action:
            case Create(manifest):
                return self._create(job, manifest)
            case Apply(manifest, uid):
                return self._apply(job, manifest, uid)
            case ApplyStatus(manifest, uid):
                return self._tell(manifest, uid)
            case ReleaseQuota(name, uid):
                return self._release(job, name, uid, now)
            case Delete(kind, name, uid):
                return self._cluster.delete(kind_of_child(kind), job.namespace, name, uid)
            case DeletePod(name, uid, force):
                POD_DELETIONS.labels(str(force).lower()).inc()
                grace = 0 if force else None
                return self._cluster.delete(POD, job.namespace, name, uid, grace)
            case DeleteJob():
                return self._cluster.delete(JOB, job.namespace, job.name, job.uid)
            case MakeKeys(templates):
                return self._make_keys(job, dict(templates))
            case Emit():
                return self._emit(job, action, now)

    async def _create(self, job: Job, manifest: Manifest) -> None:
        try:
            answer = await self._cluster.create(manifest)
        except ConflictError:
            # A write whose answer was lost, a cache that lags, or an object of somebody else.
            answer = await self._ours(job, manifest)
        except MissingError as problem:
            # What it refers to: an API server does not know at once of a Role that it has taken.
            raise UnavailableError(str(problem)) from problem
        self._cache.settle(_key(job), answer, manifest)

    async def _apply(self, job: Job, manifest: Manifest, uid: str) -> None:
        answer = await self._cluster.apply(manifest, uid)
        self._cache.settle(_key(job), answer, manifest)

    async def _tell(self, manifest: Manifest, uid: str) -> None:
        metadata = {**manifest["metadata"], "uid": uid}
        self._cache.see_child(await self._cluster.apply_status({**manifest, "metadata": metadata}))

    async def _release(self, job: Job, name: str, uid: str, now: Time) -> None:
        """Take the admission out of a Workload: written by others, so read and written whole."""
        found = await self._cluster.get(GANG_KINDS[kueue.KIND], job.namespace, name)
        if found["metadata"]["uid"] == uid:
            released = kueue.released(found, rfc3339(now))
            self._cache.see_child(await self._cluster.replace(released, "/status"))

    async def _ours(self, job: Job, manifest: Manifest) -> Manifest:
        """The object that has the name already, if it is this job's.

        Raises:
            UnavailableError: it is what an earlier job of this name left, and will go, or has
                gone since its name was taken.
            RefusedError: it is somebody else's.
        """
        kind, name = kind_of(manifest), manifest["metadata"]["name"]
        try:
            found = await self._cluster.get(kind, job.namespace, name)
        except MissingError as problem:
            raise UnavailableError(f"{kind.name} {name} was there, and is gone") from problem
        owners = found["metadata"].get("ownerReferences") or ()
        if any(owner["uid"] == job.uid for owner in owners):
            return found
        if any((owner["kind"], owner["name"]) == (KIND, job.name) for owner in owners):
            raise UnavailableError(f"{kind.name} {name} of an earlier job is not gone yet")
        raise RefusedError(f"{kind.name} {name} is there already and is not this job's")

    async def _make_keys(self, job: Job, templates: dict[RoleName, Manifest]) -> None:
        """Make the Secrets that are missing; the first write decides the keys of all."""
        controllers = templates.pop("controller")
        # Made here, so that no pod needs a right to make Secrets.
        pairs: KeyPairs = {role: key_pair() for role in ("controller", *templates)}
        try:
            await self._cluster.create(secret(controllers, "controller", pairs))
        except ConflictError:
            pairs = read_pairs(await self._ours(job, controllers))
        await asyncio.gather(
            *(self._make_secret(job, secret(one, role, pairs)) for role, one in templates.items())
        )

    async def _make_secret(self, job: Job, manifest: Manifest) -> None:
        try:
            await self._cluster.create(manifest)
        except ConflictError:
            await self._ours(job, manifest)

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


def _key(job: Job) -> JobKey:
    return job.namespace, job.name
