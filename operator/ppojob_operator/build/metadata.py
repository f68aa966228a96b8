"""Who owns an object of a job, and the labels by which it is found. Pure."""

from typing import Any, Final

from ppojob_api.well_known import (
    API_VERSION,
    KIND,
    LABEL_JOB,
    LABEL_ROLE,
    ROLE_SLUGS,
    RoleName,
    workload_name,
)
from ppojob_operator.kinds import kind_of_child
from ppojob_operator.state import ChildKind, Job, Manifest

# The uid and not the name selects: a label that an author spoofs gets no traffic.
LABEL_JOB_UID: Final = "ppojob.dev/job-uid"
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGED_BY: Final = "ppojob-operator"
ANNOTATION_GENERATION: Final = "ppojob.dev/generation"
ANNOTATION_TEMPLATE: Final = "ppojob.dev/template-digest"
"""On a StatefulSet: the generation of the job that it was rendered from, and what was rendered. An
operator that renders otherwise leaves a StatefulSet of the same generation alone; a webhook that
rewrites images changes neither."""

_ROLE_OF_SLUG: Final[dict[str, RoleName]] = {slug: role for role, slug in ROLE_SLUGS.items()}


def labels(job: Job, role: RoleName | None = None) -> dict[str, str]:
    """Labels of an object of the job, or of one of its roles."""
    common = {LABEL_MANAGED_BY: MANAGED_BY, LABEL_JOB: job.name, LABEL_JOB_UID: job.uid}
    return {**common, LABEL_ROLE: ROLE_SLUGS[role]} if role else common


def selector(job: Job, role: RoleName | None = None) -> dict[str, str]:
    """Labels that select the pods of the job, or of one of its roles, and no others."""
    every = {LABEL_JOB_UID: job.uid}
    return {**every, LABEL_ROLE: ROLE_SLUGS[role]} if role else every


def role_of(labels_of_object: Manifest) -> RoleName | None:
    """The role that an object's labels name."""
    return _ROLE_OF_SLUG.get(str(labels_of_object.get(LABEL_ROLE, "")))


def owner_reference(job: Job) -> dict[str, Any]:
    """The reference by which the garbage collector deletes the object after the job."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": job.name,
        "uid": job.uid,
        "controller": True,
    }


def manifest(
    kind: ChildKind, job: Job, name: str, role: RoleName | None = None, **content: Any
) -> dict[str, Any]:
    """An object of the job: its head, and `content` below it."""
    whole = kind_of_child(kind)
    return {
        "apiVersion": whole.api_version,
        "kind": whole.name,
        "metadata": {
            "name": name,
            "namespace": job.namespace,
            "labels": labels(job, role),
            "ownerReferences": [owner_reference(job)],
        },
        **content,
    }


def gang_name(job: Job) -> str:
    """Name of what places all pods of a job together, whoever that is."""
    return f"ppojob-{job.name}"


def controller_name(job: Job) -> str:
    """Name of the controller's service account and of what gives it its rights."""
    return workload_name(job.name, "controller")
