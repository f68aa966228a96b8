"""Gang scheduling: the objects of each provider that schedule a job's pods together. Pure."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from ppojob_api.v1alpha1.scheduling import KueueSpec, SchedulingType, VolcanoSpec
from ppojob_api.well_known import GROUP, KIND
from ppojob_operator.build import kueue
from ppojob_operator.build.metadata import gang_name, manifest
from ppojob_operator.state import ChildKind, GangFacts, Job, Manifest, Placement, PodSet

_VOLCANO_GROUP: Final = "PodGroup.scheduling.volcano.sh"
_COSCHEDULING_GROUP: Final = "PodGroup.scheduling.x-k8s.io"
_TOPOLOGY: Final = "volcano.sh/network-topology"
_SUFFIXES: Final = {
    "": Fraction(1),
    "m": Fraction(1, 1000),
    **{letter: Fraction(1000**power) for power, letter in enumerate("kMGT", 1)},
    **{f"{letter}i": Fraction(1024**power) for power, letter in enumerate("KMGT", 1)},
}
"""Those that `PodSettings` allows, https://kubernetes.io/docs/reference/kubernetes-api/
common-definitions/quantity."""


@dataclass(frozen=True, slots=True)
class Gang:
    """A provider of gang scheduling."""

    # Of its objects; the status of the last one has the scheduler's answer.
    kinds: tuple[ChildKind, ...]
    provider: str  # what must be installed
    objects: Callable[[Job, tuple[PodSet, ...], GangFacts], list[dict[str, Any]]]


def _kueue_objects(job: Job, sets: tuple[PodSet, ...], facts: GangFacts) -> list[dict[str, Any]]:
    spec = job.scheduling.kueue
    assert isinstance(spec, KueueSpec), "validation requires it"
    priority = facts.priorities.get(spec.priority_class_name or "")
    if spec.priority_class_name is not None and priority is None:
        # `policies.admission` reports it; a Workload without its priority would be queued last.
        return []
    return [kueue.workload(job, spec, sets, priority)]


def _volcano_objects(job: Job, sets: tuple[PodSet, ...], _: GangFacts) -> list[dict[str, Any]]:
    """Build the PodGroup of all pods, with the sum of their requests."""
    spec = job.scheduling.volcano or VolcanoSpec()
    content: dict[str, Any] = {**_needs(sets), "queue": spec.queue}
    if spec.priority_class_name is not None:
        content["priorityClassName"] = spec.priority_class_name
    if topology := _network_topology(sets):
        content["networkTopology"] = topology
    return [manifest(_VOLCANO_GROUP, job, gang_name(job), spec=content)]


def _coscheduling_objects(job: Job, sets: tuple[PodSet, ...], _: GangFacts) -> list[dict[str, Any]]:
    return [manifest(_COSCHEDULING_GROUP, job, gang_name(job), spec=_needs(sets))]


def _needs(sets: tuple[PodSet, ...]) -> dict[str, Any]:
    """Return what a PodGroup waits for: room for all pods."""
    return {
        "minMember": sum(pod_set.count for pod_set in sets),
        "minResources": total_requests(sets),
    }


def _network_topology(sets: tuple[PodSet, ...]) -> dict[str, Any]:
    """Return how near to each other all pods must be, by Volcano's annotations of pods."""
    annotations: dict[str, str] = {}
    for pod_set in sets:
        annotations |= pod_set.template["metadata"]["annotations"]
    mode, tier = (annotations.get(f"{_TOPOLOGY}-{name}") for name in ("mode", "highest-tier"))
    topology: dict[str, Any] = {"mode": mode or "hard"} if mode or tier else {}
    if tier:
        # Another value stays text, which the API server refuses.
        topology["highestTierAllowed"] = int(tier) if tier.isdecimal() else tier
    return topology


def total_requests(sets: tuple[PodSet, ...]) -> dict[str, str]:
    """Sum the requests of all pods, by resource."""
    totals: dict[str, Fraction] = defaultdict(Fraction)
    for pod_set in sets:
        for container in pod_set.template["spec"]["containers"]:
            for name, text in container["resources"]["requests"].items():
                digits = text.rstrip("mkKMGTi")
                totals[name] += pod_set.count * int(digits) * _SUFFIXES[text[len(digits) :]]
    return {
        name: str(total) if total.denominator == 1 else f"{total * 1000}m"
        for name, total in sorted(totals.items())
    }


def _own_objects(job: Job, sets: tuple[PodSet, ...], _: GangFacts) -> list[dict[str, Any]]:
    """Build the Workload, which has the policy, and the PodGroup, which the scheduler reads.

    scheduling.k8s.io/v1alpha2 (KEP-4671). All roles are one group, since training needs all.
    """
    name, template = gang_name(job), "job"
    policy = {"gang": {"minCount": sum(pod_set.count for pod_set in sets)}}
    controller = {"apiGroup": GROUP, "kind": KIND, "name": job.name}
    templates = [{"name": template, "schedulingPolicy": policy}]
    origin = {"workloadName": name, "podGroupTemplateName": template}
    workload = {"controllerRef": controller, "podGroupTemplates": templates}
    group = {"podGroupTemplateRef": {"workload": origin}, "schedulingPolicy": policy}
    return [
        manifest("Workload", job, name, spec=workload),
        manifest("PodGroup", job, name, spec=group),
    ]


GANGS: Final[Mapping[SchedulingType, Gang]] = {
    "kueue": Gang((kueue.KIND,), "Kueue 0.15 or newer", _kueue_objects),
    "volcano": Gang((_VOLCANO_GROUP,), "Volcano 1.8 or newer", _volcano_objects),
    "coscheduling": Gang(
        (_COSCHEDULING_GROUP,),
        "a scheduler with the plugin Coscheduling (scheduler-plugins 0.31 or newer)",
        _coscheduling_objects,
    ),
    "workload": Gang(
        ("Workload", "PodGroup"),
        "Kubernetes 1.36 with the feature gates GenericWorkload and GangScheduling, and the API"
        " scheduling.k8s.io/v1alpha2 enabled",
        _own_objects,
    ),
}


def member(job: Job, template: Manifest, placement: Placement | None) -> dict[str, Any]:
    """Build a role's pod template as a gang member; `placement` is what a queue adds."""
    whole = dict(template)
    if job.scheduling.type == "workload":
        group = {"podGroupName": gang_name(job)}
        whole["spec"] = {**whole["spec"], "schedulingGroup": group}
    if job.scheduling.type in ("volcano", "coscheduling"):
        whole["spec"] = {**whole["spec"], "schedulerName": job.scheduling.scheduler_name}
    if job.scheduling.type == "volcano":
        group_annotation = {"scheduling.k8s.io/group-name": gang_name(job)}
        whole = _placed(whole, Placement(annotations=group_annotation))
    if job.scheduling.type == "coscheduling":
        label = {"scheduling.x-k8s.io/pod-group": gang_name(job)}
        whole = _placed(whole, Placement(labels=label))
    return _placed(whole, placement) if placement is not None else whole


def _placed(template: Manifest, placement: Placement) -> dict[str, Any]:
    """Add a queue's placement to a template; existing keys are kept."""
    metadata, spec = dict(template["metadata"]), dict(template["spec"])
    for name, added in (("labels", placement.labels), ("annotations", placement.annotations)):
        metadata[name] = {**added, **metadata.get(name, {})}
    if placement.node_selector:
        # If both name a label, Kueue assigned a flavor with the same value.
        spec["nodeSelector"] = {**spec.get("nodeSelector", {}), **placement.node_selector}
    existing = spec.get("tolerations", [])
    spec["tolerations"] = [
        *existing,
        *(toleration for toleration in placement.tolerations if toleration not in existing),
    ]
    if placement.gates:
        gates = [{"name": gate} for gate in placement.gates]
        spec["schedulingGates"] = [*spec.get("schedulingGates", []), *gates]
    return {**template, "metadata": metadata, "spec": spec}
