"""What the controller's pod may do at the API server: tell how far its own job is. Pure.

A ValidatingAdmissionPolicy of the chart holds it to `status.training`; no other pod of a job gets
a token at all.
"""

from typing import Any

from ppojob_api.well_known import GROUP, PLURAL
from ppojob_operator.build.metadata import controller_name, manifest
from ppojob_operator.state import Job


def service_account(job: Job) -> dict[str, Any]:
    """The identity of the controller's pod; a token is mounted by the pod, not by default."""
    return manifest(
        "ServiceAccount",
        job,
        controller_name(job),
        "controller",
        automountServiceAccountToken=False,
    )


def role(job: Job) -> dict[str, Any]:
    """The one right: to patch the status of this very job."""
    rule = {
        "apiGroups": [GROUP],
        "resources": [f"{PLURAL}/status"],
        "resourceNames": [job.name],
        "verbs": ["patch"],
    }
    return manifest("Role", job, controller_name(job), "controller", rules=[rule])


def role_binding(job: Job) -> dict[str, Any]:
    """Gives that right to that identity."""
    name = controller_name(job)
    return manifest(
        "RoleBinding",
        job,
        name,
        "controller",
        roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        subjects=[{"kind": "ServiceAccount", "name": name, "namespace": job.namespace}],
    )
