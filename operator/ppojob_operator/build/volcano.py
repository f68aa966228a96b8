"""Volcano: a PodGroup, whose pods its scheduler places together or not at all. Pure.

https://volcano.sh
"""

from typing import Any, Final

from ppojob_api.v1alpha1.scheduling import VolcanoSpec
from ppojob_operator.build.metadata import gang_name, manifest
from ppojob_operator.build.pod_sets import PodSet, total_requests
from ppojob_operator.state import Job, Placement

KIND: Final = "PodGroup.scheduling.volcano.sh"
SCHEDULER: Final = "volcano"
_GROUP_ANNOTATION: Final = "scheduling.k8s.io/group-name"


def pod_group(job: Job, spec: VolcanoSpec, sets: tuple[PodSet, ...]) -> dict[str, Any]:
    """The PodGroup: every pod counts, and the queue must have room for what all of them ask."""
    content: dict[str, Any] = {
        "minMember": sum(one.count for one in sets),
        "minResources": total_requests(sets),
        "queue": spec.queue,
    }
    if spec.priority_class_name is not None:
        content["priorityClassName"] = spec.priority_class_name
    return manifest(KIND, job, gang_name(job), spec=content)


def membership(job: Job) -> Placement:
    """How a pod says that it belongs to the PodGroup; its scheduler aside."""
    return Placement(annotations={_GROUP_ANNOTATION: gang_name(job)})
