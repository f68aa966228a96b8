"""Kueue integration: a Workload with a pod set per role; pods are created after admission. Pure.

Does for PPOJobs what Kueue's job framework (a Go library) does for other jobs: one Workload per
job, the admission's node labels and tolerations in the pods, conditions that report the pods'
state, and quota released after the last pod of an evicted job. https://kueue.sigs.k8s.io

With a topology of nodes (racks, blocks) Kueue also chooses the node of each pod. A Workload has the
requests from the pods' annotations, such as `kueue.x-k8s.io/podset-required-topology`. A scheduling
gate holds each pod until Kueue has added the labels of its node.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from ppojob_api.v1alpha1.scheduling import KueueSpec
from ppojob_operator.build.metadata import gang_name, manifest
from ppojob_operator.state import Child, Job, Manifest, Observed, Placement, PodSet

KIND: Final = "Workload.kueue.x-k8s.io"

# Fields by which Kueue selects a flavor; it does not need the rest of a pod.
_PLACING = ("nodeSelector", "tolerations", "affinity", "priorityClassName", "runtimeClassName")
_PREFIX = "kueue.x-k8s.io/"
_TOPOLOGY_REQUESTS = {
    "required": "podset-required-topology",
    "preferred": "podset-preferred-topology",
    "unconstrained": "podset-unconstrained-topology",
    "podSetGroupName": "podset-group-name",
    "podSetSliceRequiredTopology": "podset-slice-required-topology",
    "podSetSliceSize": "podset-slice-size",
}
"""Annotation of pods for each field of a topology request."""
_PARSERS: Mapping[str, Callable[[str], object]] = {
    # Other values stay text, which the API server refuses.
    "unconstrained": lambda text: text == "true" or text,
    "podSetSliceSize": lambda text: int(text) if text.isdecimal() else text,
}
_POD_INDEX = "apps.kubernetes.io/pod-index"
_REQUEUED = frozenset({"Preempted", "NodeFailures"})
"""Eviction reasons after which a job may be requeued at once; Kueue decides for others."""


@dataclass(frozen=True, slots=True)
class QueueCondition:
    """A condition of a Workload."""

    status: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Answer:
    """Kueue's answer in a Workload: conditions by type, flavors and updates by pod set."""

    conditions: Mapping[str, QueueCondition]
    cluster_queue: str  # that reserved the quota; empty: none
    flavors: Mapping[str, tuple[str, ...]]
    updates: Mapping[str, tuple[Placement, ...]]  # pod changes by topologies and admission checks
    waits_for: tuple[str, ...]  # messages of pending admission checks

    def holds(self, name: str) -> bool:
        """Whether a condition is true."""
        return name in self.conditions and self.conditions[name].status == "True"


def workload(
    job: Job, spec: KueueSpec, sets: tuple[PodSet, ...], priority: int | None
) -> dict[str, Any]:
    """Build the Workload; `priority` is the value of the job's priority class, if it has one."""
    content: dict[str, Any] = {
        "queueName": spec.queue_name,
        "podSets": [
            {
                "name": pod_set.slug,
                "count": pod_set.count,
                "template": _trimmed(pod_set.template),
                "topologyRequest": _topology_request(pod_set.template["metadata"]["annotations"]),
            }
            for pod_set in sets
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
        {"name": container["name"], "resources": container["resources"]}
        for container in spec["containers"]
    ]
    placing = {name: spec[name] for name in _PLACING if name in spec}
    return {"spec": {"containers": containers, **placing}}


def _topology_request(annotations: Mapping[str, str]) -> dict[str, Any]:
    """Return how near to each other the pods of a set must be, in the order of their ranks."""
    request: dict[str, Any] = {"podIndexLabel": _POD_INDEX}
    for name, annotation in _TOPOLOGY_REQUESTS.items():
        value = annotations.get(_PREFIX + annotation)
        if value is not None:
            request[name] = _PARSERS.get(name, str)(value)
    return request


def _topology_placement(workload_name: str, request: Manifest, slug: str) -> Placement:
    """Return what pods need so that Kueue finds them, and chooses the node of each."""
    annotations = {f"{_PREFIX}workload": workload_name}
    if not request.keys() & {"required", "preferred", "unconstrained"}:
        annotations[_PREFIX + _TOPOLOGY_REQUESTS["unconstrained"]] = "true"
    labels, gates = {f"{_PREFIX}podset": slug}, (f"{_PREFIX}topology",)
    return Placement(labels=labels, annotations=annotations, gates=gates)


def own_workload(job: Job, observed: Observed) -> Child | None:
    """Return the job's Workload, unless it is being deleted."""
    child = observed.children.get((KIND, gang_name(job)))
    if child is None or child.is_deleting or child.owner_uid != job.uid:
        return None
    return child


def answer(child: Child) -> Answer:
    """Read Kueue's answer from the Workload."""
    status = child.manifest.get("status") or {}
    admission = status.get("admission") or {}
    checks = status.get("admissionChecks") or ()
    assignments = admission.get("podSetAssignments") or ()
    sets = {pod_set["name"]: pod_set for pod_set in child.manifest["spec"]["podSets"]}
    updates: dict[str, tuple[Placement, ...]] = {
        name: (_topology_placement(child.name, sets[name].get("topologyRequest") or {}, name),)
        for name in (
            assignment["name"] for assignment in assignments if assignment.get("topologyAssignment")
        )
    }
    for check in checks:
        for update in check.get("podSetUpdates") or ():
            updates[update["name"]] = (*updates.get(update["name"], ()), placement(update))
    return Answer(
        conditions={
            condition["type"]: QueueCondition(
                condition["status"], condition.get("reason", ""), condition.get("message", "")
            )
            for condition in status.get("conditions") or ()
        },
        cluster_queue=admission.get("clusterQueue", ""),
        flavors={
            assignment["name"]: tuple(sorted(set((assignment.get("flavors") or {}).values())))
            for assignment in assignments
        },
        updates=updates,
        waits_for=tuple(
            f"{check['name']}: {check['state']}: {check.get('message', '')}"
            for check in checks
            if check["state"] != "Ready"
        ),
    )


def placement(update: Manifest) -> Placement:
    """Return the pod changes by a pod set update, or by the spec of a resource flavor."""
    return Placement(
        node_selector=dict(update.get("nodeSelector") or update.get("nodeLabels") or {}),
        tolerations=tuple(update.get("tolerations") or ()),
        labels=dict(update.get("labels") or {}),
        annotations=dict(update.get("annotations") or {}),
    )


def conditions(job: Job, new: Mapping[str, QueueCondition], time: str) -> dict[str, Any]:
    """Return the operator's conditions of the Workload: `PodsReady` and `Finished`."""
    applied = manifest(KIND, job, gang_name(job))
    head = {key: applied["metadata"][key] for key in ("name", "namespace")}
    status = [
        {"type": name, **asdict(one), "lastTransitionTime": time} for name, one in new.items()
    ]
    return {**applied, "metadata": head, "status": {"conditions": status}}


def released(current: Manifest, time: str) -> dict[str, Any]:
    """Return a Workload whose evicted job has no pods left, requeued without quota."""
    status = current.get("status") or {}
    before = {condition["type"]: condition for condition in status.get("conditions") or ()}
    evicted = before.get("Evicted", {})
    message = evicted.get("message", "")
    reason = evicted.get("reason") or "Evicted"
    changes = {
        "QuotaReserved": ("False", "Pending", message),
        "Admitted": ("False", "NoReservation", "The workload has no reservation"),
        # Kueue expects `Deactivated`, without the cause, to requeue a job that is active again.
        "Requeued": (str(reason in _REQUEUED), reason.partition("DueTo")[0], message),
    }
    if "Admitted" not in before:
        del changes["Admitted"]
    for name, (value, why, text) in changes.items():
        old = before.get(name, {})
        since = old["lastTransitionTime"] if old.get("status") == value else time
        new = {"type": name, "status": value, "reason": why, "message": text}
        before[name] = {**old, **new, "lastTransitionTime": since}
    kept = {key: value for key, value in status.items() if key != "admission"}
    return {**current, "status": {**kept, "conditions": list(before.values())}}
