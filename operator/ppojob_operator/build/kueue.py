"""Kueue: a Workload with a pod set a role; the pods are made when a queue has admitted it. Pure.

What the library of Kueue does for jobs in Go is done here for ours: one Workload a job, the node
labels and tolerations of the admission in the pods, conditions that tell how they are, and quota
given back behind the last pod of an evicted job. https://kueue.sigs.k8s.io
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from ppojob_api.v1alpha1.scheduling import KueueSpec
from ppojob_operator.build.metadata import gang_name, manifest
from ppojob_operator.state import Child, Job, Manifest, Observed, Placement, PodSet

KIND: Final = "Workload.kueue.x-k8s.io"

# What decides which flavor fits; the rest of a pod is no business of a queue.
_PLACING = ("nodeSelector", "tolerations", "affinity", "priorityClassName", "runtimeClassName")
_REQUEUED = frozenset({"Preempted", "NodeFailures"})
"""Evictions behind which a job may be admitted again at once; Kueue decides about all others."""


@dataclass(frozen=True, slots=True)
class QueueCondition:
    """A condition of a Workload."""

    status: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What Kueue says of a Workload: conditions by type, flavors and updates by pod set.

    Attributes:
        cluster_queue: that has reserved quota for it, or empty.
        updates: what admission checks add to pods.
        waits_for: messages of admission checks that are not passed yet.
    """

    conditions: Mapping[str, QueueCondition]
    cluster_queue: str
    flavors: Mapping[str, tuple[str, ...]]
    updates: Mapping[str, tuple[Placement, ...]]
    waits_for: tuple[str, ...]

    def holds(self, name: str) -> bool:
        """Whether a condition is true."""
        return name in self.conditions and self.conditions[name].status == "True"


def workload(
    job: Job, spec: KueueSpec, sets: tuple[PodSet, ...], priority: int | None
) -> dict[str, Any]:
    """The Workload; `priority` is the value of the job's priority class, where it has one."""
    content: dict[str, Any] = {
        "queueName": spec.queue_name,
        "podSets": [
            {"name": one.slug, "count": one.count, "template": _trimmed(one.template)}
            for one in sets
        ],
    }
    if spec.priority_class_name is not None:
        content["priority"] = priority
        content["priorityClassRef"] = {
            "group": "kueue.x-k8s.io",
            "kind": "WorkloadPriorityClass",
            "name": spec.priority_class_name,
        }
    return manifest(KIND, job, gang_name(job), spec=content)


def _trimmed(template: Manifest) -> dict[str, Any]:
    spec = template["spec"]
    containers = [
        {"name": one["name"], "resources": one["resources"]} for one in spec["containers"]
    ]
    placing = {name: spec[name] for name in _PLACING if name in spec}
    return {"spec": {"containers": containers, **placing}}


def own_workload(job: Job, observed: Observed) -> Child | None:
    """The Workload of this very job, unless it is on its way out."""
    child = observed.children.get((KIND, gang_name(job)))
    if child is None or child.is_deleting or child.owner_uid != job.uid:
        return None
    return child


def answer(child: Child) -> Answer:
    """What Kueue has written into the Workload."""
    status = child.manifest.get("status") or {}
    admission = status.get("admission") or {}
    checks = status.get("admissionChecks") or ()
    updates: dict[str, tuple[Placement, ...]] = {}
    for one in (update for check in checks for update in check.get("podSetUpdates") or ()):
        updates[one["name"]] = (*updates.get(one["name"], ()), placement(one))
    return Answer(
        conditions={
            one["type"]: QueueCondition(
                one["status"], one.get("reason", ""), one.get("message", "")
            )
            for one in status.get("conditions") or ()
        },
        cluster_queue=admission.get("clusterQueue", ""),
        flavors={
            one["name"]: tuple(sorted(set((one.get("flavors") or {}).values())))
            for one in admission.get("podSetAssignments") or ()
        },
        updates=updates,
        waits_for=tuple(
            f"{one['name']}: {one['state']}: {one.get('message', '')}"
            for one in checks
            if one["state"] != "Ready"
        ),
    )


def placement(update: Manifest) -> Placement:
    """What a pod set update, or the spec of a resource flavor, adds to pods."""
    return Placement(
        node_selector=dict(update.get("nodeSelector") or update.get("nodeLabels") or {}),
        tolerations=tuple(update.get("tolerations") or ()),
        labels=dict(update.get("labels") or {}),
        annotations=dict(update.get("annotations") or {}),
    )


def conditions(job: Job, told: Mapping[str, QueueCondition], time: str) -> dict[str, Any]:
    """Conditions of ours in the Workload: `PodsReady` and `Finished`."""
    applied = manifest(KIND, job, gang_name(job))
    head = {key: applied["metadata"][key] for key in ("name", "namespace")}
    status = [
        {"type": name, **asdict(one), "lastTransitionTime": time} for name, one in told.items()
    ]
    return {**applied, "metadata": head, "status": {"conditions": status}}


def released(found: Manifest, time: str) -> dict[str, Any]:
    """A Workload whose evicted job has no pods any more: without quota, and in the queue again."""
    status = found.get("status") or {}
    before = {one["type"]: one for one in status.get("conditions") or ()}
    evicted = before.get("Evicted", {})
    message = evicted.get("message", "")
    reason = evicted.get("reason") or "Evicted"
    told = {
        "QuotaReserved": ("False", "Pending", message),
        "Admitted": ("False", "NoReservation", "The workload has no reservation"),
        # Kueue takes a job back that is active again by `Deactivated` alone, not by its cause.
        "Requeued": (str(reason in _REQUEUED), reason.partition("DueTo")[0], message),
    }
    if "Admitted" not in before:
        del told["Admitted"]
    for name, (value, why, words) in told.items():
        old = before.get(name, {})
        since = old["lastTransitionTime"] if old.get("status") == value else time
        new = {"type": name, "status": value, "reason": why, "message": words}
        before[name] = {**old, **new, "lastTransitionTime": since}
    kept = {key: value for key, value in status.items() if key != "admission"}
    return {**found, "status": {**kept, "conditions": list(before.values())}}
