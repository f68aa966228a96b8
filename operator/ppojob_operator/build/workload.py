"""Kubernetes' own gangs: a Workload, and the PodGroup that its pods are placed with. Pure.

scheduling.k8s.io/v1alpha2, as Kubernetes 1.36 has it behind the gates GenericWorkload and
GangScheduling (KEP-4671). All roles are one group: without any one of them nothing trains.
"""

from typing import Any, Final

from ppojob_api.well_known import GROUP, KIND
from ppojob_operator.build.metadata import gang_name, manifest
from ppojob_operator.build.pod_sets import PodSet
from ppojob_operator.state import Job

WORKLOAD: Final = "Workload"
POD_GROUP: Final = "PodGroup"
_TEMPLATE: Final = "job"


def gang(job: Job, sets: tuple[PodSet, ...]) -> list[dict[str, Any]]:
    """The Workload, which says what is wanted, and the PodGroup, by which the scheduler goes."""
    name = gang_name(job)
    policy = {"gang": {"minCount": sum(one.count for one in sets)}}
    controller = {"apiGroup": GROUP, "kind": KIND, "name": job.name}
    templates = [{"name": _TEMPLATE, "schedulingPolicy": policy}]
    origin = {"workloadName": name, "podGroupTemplateName": _TEMPLATE}
    return [
        manifest(
            WORKLOAD, job, name, spec={"controllerRef": controller, "podGroupTemplates": templates}
        ),
        manifest(
            POD_GROUP,
            job,
            name,
            spec={"podGroupTemplateRef": {"workload": origin}, "schedulingPolicy": policy},
        ),
    ]
