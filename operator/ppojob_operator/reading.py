"""Parsing of Kubernetes objects to the trimmed records that the cache holds. Pure.

Parsing is lenient: fields depend on the API server's version, and an absent field means Kubernetes'
default.
"""

import functools
import json
import sys
import zlib
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ppojob_api.problem import Problem
from ppojob_api.shape import Shape, known, members
from ppojob_api.v1alpha1.job import Metadata, PPOJob
from ppojob_api.v1alpha1.schedule import LifecycleSpec, RecoverySpec
from ppojob_api.v1alpha1.scheduling import SchedulingSpec
from ppojob_api.v1alpha1.section import Section
from ppojob_api.v1alpha1.status import PPOJobStatus
from ppojob_api.validation import validate
from ppojob_api.well_known import ANNOTATION_CONFIG_DIGEST, LABEL_JOB
from ppojob_operator.build.metadata import LABEL_JOB_UID, layout_of, role_of
from ppojob_operator.build.pod_template import CONTAINER
from ppojob_operator.conditions import from_rfc3339, sanitized
from ppojob_operator.kinds import GANG_KINDS, child_kind
from ppojob_operator.state import Child, ControllerReport, Job, Manifest, Pod, Termination, Time

S = TypeVar("S", bound=Section)

JobKey = tuple[str, str]
"""Namespace and name."""

JOBS_REMEMBERED = 256
"""Size of the caches of what follows from a spec alone, for the jobs reconciled last: about 60 kB
each, which save a millisecond per reconcile."""

_UNREACHABLE = "node.kubernetes.io/unreachable"
# The API server adds other metadata, more with each version.
_AUTHORS_METADATA = tuple(sorted(members(Metadata).keys() - {"uid"}))
_KEPT_METADATA = ("annotations", "labels", "name", "namespace", "ownerReferences")


def job_key(manifest: Manifest) -> JobKey:
    """The job of an object, by its labels."""
    metadata = manifest["metadata"]
    name = (metadata.get("labels") or {}).get(LABEL_JOB, "")
    return metadata["namespace"], name


def pack(manifest: Manifest) -> bytes:
    """Compress an object."""
    return zlib.compress(json.dumps(manifest, separators=(",", ":")).encode(), 1)


def unpack(packed: bytes) -> Any:
    """Decompress an object."""
    return json.loads(zlib.decompress(packed))


def read_job(manifest: Manifest) -> Job:
    """Parse a PPOJob and validate it, like `ppojob validate`.

    Raises:
        ValueError: its status cannot be parsed.
    """
    metadata = manifest["metadata"]
    written = {key: value for key, value in manifest.items() if key != "status"}
    written["metadata"] = {key: metadata[key] for key in _AUTHORS_METADATA if key in metadata}
    judged = _judged(json.dumps(written))
    return Job(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        generation=int(metadata.get("generation", 1)),
        resource_version=metadata["resourceVersion"],
        created=from_rfc3339(metadata["creationTimestamp"]),
        is_deleting="deletionTimestamp" in metadata,
        lifecycle=_section(judged, manifest, "lifecycle", LifecycleSpec),
        recovery=_section(judged, manifest, "recovery", RecoverySpec),
        scheduling=_section(judged, manifest, "scheduling", SchedulingSpec),
        validated=judged if isinstance(judged, PPOJob) else None,
        problems=() if isinstance(judged, PPOJob) else judged,
        status=_read(manifest.get("status") or {}, PPOJobStatus),
    )


def _read(written: object, model: type[S]) -> S:
    """Parse a part of a job without fields that only a newer operator knows."""
    return model.model_validate(known(written, Shape("object", model=model)), by_alias=True)


def _section(judged: object, manifest: Manifest, name: str, model: type[S]) -> S:
    """Parse a section of a job whose spec may be invalid elsewhere: it can still be suspended.

    An invalid section has its defaults.
    """
    if isinstance(judged, PPOJob):
        right: S = getattr(judged.spec, name)
        return right
    written = (manifest.get("spec") or {}).get(name)
    try:
        return _read(written or {}, model)
    except ValidationError:
        return model()


@functools.lru_cache(maxsize=JOBS_REMEMBERED)
def _judged(written: str) -> PPOJob | tuple[Problem, ...]:
    """Validate a job; cached, since a job is reconciled often and edited seldom."""
    judged = validate(json.loads(written))
    return judged if isinstance(judged, PPOJob) else tuple(judged)


def trimmed_job(manifest: Manifest) -> dict[str, Any]:
    """A PPOJob without fields that `read_job` never uses."""
    metadata = manifest["metadata"]
    annotations = {
        key: value
        for key, value in (metadata.get("annotations") or {}).items()
        if not key.startswith("kubectl.kubernetes.io/")
    }
    kept = {key: value for key, value in metadata.items() if key != "managedFields"}
    return {**manifest, "metadata": {**kept, "annotations": annotations}}


def read_pod(manifest: Manifest) -> Pod | None:
    """Parse a pod; None if it belongs to no job."""
    metadata, spec, status = manifest["metadata"], manifest["spec"], manifest.get("status") or {}
    labels = metadata.get("labels") or {}
    role = role_of(labels)
    if role is None or LABEL_JOB_UID not in labels:
        return None
    conditions = {condition["type"]: condition for condition in status.get("conditions") or ()}
    # The kubelet sorts containers by name, and webhooks add their own.
    containers = {one["name"]: one for one in status.get("containerStatuses") or ()}
    container: dict[str, Any] = containers.get(CONTAINER, {})
    state = container.get("state") or {}
    waiting = state.get("waiting") or {}
    scheduled = conditions.get("PodScheduled", {})
    disruption = conditions.get("DisruptionTarget", {})
    is_unplaced = scheduled.get("status") == "False"
    is_disrupted = disruption.get("status") == "True"
    return Pod(
        namespace=sys.intern(metadata["namespace"]),
        name=metadata["name"],
        uid=metadata["uid"],
        job_uid=sys.intern(labels[LABEL_JOB_UID]),
        role=role,
        created=from_rfc3339(metadata["creationTimestamp"]),
        owner_uid=sys.intern(_owner_uid(metadata)),
        phase=sys.intern(status.get("phase", "Pending")),
        is_ready=conditions.get("Ready", {}).get("status") == "True",
        is_deleting="deletionTimestamp" in metadata,
        node=sys.intern(spec.get("nodeName", "")),
        address=status.get("podIP", ""),
        config_digest=sys.intern(
            (metadata.get("annotations") or {}).get(ANNOTATION_CONFIG_DIGEST, "")
        ),
        layout=sys.intern(layout_of(metadata)),
        memory_limit=sys.intern(_memory_limit(spec)),
        restarts=int(container.get("restartCount", 0)),
        unschedulable=sys.intern(sanitized(scheduled.get("message", ""))) if is_unplaced else "",
        waiting_reason=sys.intern(waiting.get("reason", "")),
        waiting_message=sanitized(waiting.get("message", "")),
        disruption=sys.intern(disruption.get("reason", "")) if is_disrupted else "",
        reason=status.get("reason", ""),
        message=sanitized(status.get("message", "")),
        last=_termination(container),
    )


def _owner_uid(metadata: Mapping[str, Any]) -> str:
    owners = metadata.get("ownerReferences") or ()
    return next((one["uid"] for one in owners if one.get("controller")), "")


def _memory_limit(spec: Mapping[str, Any]) -> str:
    for container in spec.get("containers") or ():
        if container["name"] == CONTAINER:
            limits = (container.get("resources") or {}).get("limits") or {}
            return str(limits.get("memory", ""))
    return ""


def _termination(container: Mapping[str, Any]) -> Termination | None:
    """The last termination of the container.

    The kubelet counts it in restartCount only when it restarts the container.
    """
    ended = (container.get("lastState") or {}).get("terminated")
    if ended is None:
        return None
    finished = ended.get("finishedAt")
    return Termination(
        exit_code=int(ended.get("exitCode", 0)),
        reason=ended.get("reason", ""),
        message=sanitized(ended.get("message", "")),
        finished=from_rfc3339(finished) if finished else None,
    )


def unreachable_since(manifest: Manifest) -> Time | None:
    """When a node's kubelet stopped responding, by the node controller; None while it responds."""
    conditions = {one["type"]: one for one in manifest.get("status", {}).get("conditions") or ()}
    ready = conditions.get("Ready", {})
    if ready.get("status") == "Unknown":
        return from_rfc3339(ready["lastTransitionTime"])
    for taint in manifest.get("spec", {}).get("taints") or ():
        if taint["key"] == _UNREACHABLE and taint.get("timeAdded"):
            return from_rfc3339(taint["timeAdded"])
    return None


class _PodStatus(BaseModel):
    """The fields of a supervisor's `/status` that are read."""

    phase: str
    reason: str = ""
    exit_code: int | None = None


def read_report(pod_uid: str, body: bytes | str) -> ControllerReport:
    """Parse the answer of a pod's supervisor.

    Raises:
        ValueError: it is not the status of a supervisor.
    """
    status = _PodStatus.model_validate_json(body)
    return ControllerReport(pod_uid, status.phase, sanitized(status.reason), status.exit_code)


def read_child(manifest: Manifest) -> Child:
    """Parse an object of a job, with the fields that others may change, and a gang's status."""
    metadata, kind = manifest["metadata"], child_kind(manifest)
    skipped = {"metadata"} | ({"data"} if manifest.get("immutable") else set())
    if kind not in GANG_KINDS:
        skipped.add("status")
    content = {key: value for key, value in manifest.items() if key not in skipped}
    head = {key: metadata[key] for key in _KEPT_METADATA if key in metadata}
    return Child(
        kind=kind,
        name=metadata["name"],
        uid=metadata["uid"],
        owner_uid=_owner_uid(metadata),
        is_deleting="deletionTimestamp" in metadata,
        manifest={**content, "metadata": head},
    )
