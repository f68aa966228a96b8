"""The StatefulSet of a role: pods with names that last. Pure."""

from typing import Any

from ppojob_api.topology import RoleTopology
from ppojob_api.well_known import workload_name
from ppojob_operator.build.metadata import (
    ANNOTATION_GENERATION,
    ANNOTATION_TEMPLATE,
    manifest,
    selector,
)
from ppojob_operator.difference import digest
from ppojob_operator.state import Job, Manifest


def stateful_set(job: Job, role: RoleTopology, template: Manifest) -> dict[str, Any]:
    """The pods of a role.

    Parallel: ranks wait for each other, so pods must not. OnDelete: a changed template restarts
    nothing by itself.
    """
    name = workload_name(job.name, role.role)
    rendered = manifest(
        "StatefulSet",
        job,
        name,
        role.role,
        spec={
            "replicas": len(role.pods),
            "serviceName": name,
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "revisionHistoryLimit": 1,
            "selector": {"matchLabels": selector(job, role.role)},
            "template": template,
        },
    )
    rendered["metadata"]["annotations"] = {
        ANNOTATION_GENERATION: str(job.generation),
        ANNOTATION_TEMPLATE: digest(rendered["spec"]),
    }
    return rendered
