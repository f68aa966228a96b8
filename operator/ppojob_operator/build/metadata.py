"""Owner references, labels and annotations of a job's objects, and their comparison. Pure."""

import hashlib
import json
from typing import Any, Final

from ppojob_api.v1alpha1.agent import AgentSpec
from ppojob_api.well_known import (
    API_VERSION,
    KIND,
    LABEL_JOB,
    LABEL_ROLE,
    ROLE_SLUGS,
    RoleName,
    row_account_name,
    workload_name,
)
from ppojob_operator.kinds import kind_of_child
from ppojob_operator.state import ChildKind, Job, Manifest

# Selectors use the uid, not the name: pods with a spoofed name label get no traffic.
LABEL_JOB_UID: Final = "ppojob.dev/job-uid"
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGED_BY: Final = "ppojob-operator"
ANNOTATION_GENERATION: Final = "ppojob.dev/generation"
ANNOTATION_TEMPLATE: Final = "ppojob.dev/template-digest"
"""On a StatefulSet: the generation of the job that it was rendered from, and a digest of its spec.
Another version of the operator does not change a StatefulSet of the same generation. A webhook that
rewrites images changes neither annotation."""

ANNOTATION_LAYOUT: Final = "ppojob.dev/layout-digest"
"""On StatefulSets, their pods and gang objects: digest of the layout that they were created for.
Objects without it were created by an older operator, for the layout that the job has."""

_ROLE_OF_SLUG: Final[dict[str, RoleName]] = {slug: role for role, slug in ROLE_SLUGS.items()}


def labels(job: Job, role: RoleName | None = None) -> dict[str, str]:
    """Labels of an object of the job, or of a role."""
    common = {LABEL_MANAGED_BY: MANAGED_BY, LABEL_JOB: job.name, LABEL_JOB_UID: job.uid}
    return {**common, LABEL_ROLE: ROLE_SLUGS[role]} if role else common


def selector(job: Job, role: RoleName | None = None) -> dict[str, str]:
    """Labels that select only the pods of the job, or of a role."""
    every = {LABEL_JOB_UID: job.uid}
    return {**every, LABEL_ROLE: ROLE_SLUGS[role]} if role else every


def is_of(job: Job, metadata: Manifest) -> bool:
    """Whether an object belongs to the job: by owner reference, or without one by its label."""
    owners = metadata.get("ownerReferences")
    if owners:
        return any(owner["uid"] == job.uid for owner in owners)
    return (metadata.get("labels") or {}).get(LABEL_JOB_UID) == job.uid


def role_of(labels_of_object: Manifest) -> RoleName | None:
    """The role in an object's labels."""
    return _ROLE_OF_SLUG.get(str(labels_of_object.get(LABEL_ROLE, "")))


def manifest(
    kind: ChildKind, job: Job, name: str, role: RoleName | None = None, **content: Any
) -> dict[str, Any]:
    """Build an object that the job owns: its metadata and `content`."""
    whole = kind_of_child(kind)
    owner = {"apiVersion": API_VERSION, "kind": KIND, "name": job.name, "uid": job.uid}
    return {
        "apiVersion": whole.api_version,
        "kind": whole.name,
        "metadata": {
            "name": name,
            "namespace": job.namespace,
            "labels": labels(job, role),
            "ownerReferences": [{**owner, "controller": True}],
        },
        **content,
    }


def claim_name(job_name: str) -> str:
    """Name of the PersistentVolumeClaim that is created for a job's run."""
    return f"{job_name}-run"


def gang_name(job: Job) -> str:
    """Name of the objects of gang scheduling."""
    return f"ppojob-{job.name}"


def layout_of(metadata: Manifest) -> str:
    """Digest of the layout that an object was created for; empty if unknown."""
    return str((metadata.get("annotations") or {}).get(ANNOTATION_LAYOUT, ""))


def controller_name(job: Job) -> str:
    """Name of the controller's ServiceAccount, Role and RoleBinding."""
    return workload_name(job.name, "controller")


def has_account(role: RoleName, agent: AgentSpec | None) -> bool:
    """Whether the pods of a role have the token of a ServiceAccount."""
    makes_pods = role == "tools" and agent is not None and agent.containers is not None
    return role == "controller" or makes_pods


def account_name(job: Job, role: RoleName) -> str:
    """Name of the ServiceAccount of such a role."""
    return row_account_name(job.name) if role == "tools" else controller_name(job)


def digest(manifest: Manifest) -> str:
    """SHA-256 of an object's canonical JSON."""
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def is_up_to_date(actual: Manifest, desired: Manifest) -> bool:
    """Whether an object has all desired fields; the API server and others may set more.

    The data of an immutable object is not compared.
    """
    skipped = {"apiVersion", "kind"} | ({"data"} if desired.get("immutable") else set())
    return all(
        _matches(actual.get(key), value) for key, value in desired.items() if key not in skipped
    )


def _matches(actual: object, desired: object) -> bool:
    # Most parts are equal, which is fast to see.
    if actual == desired:
        return True
    # Plain JSON types; checks against abstract types would take three times as long.
    if isinstance(desired, dict):
        if not isinstance(actual, dict):
            return not desired
        return all(_matches(actual.get(key), value) for key, value in desired.items())
    if isinstance(desired, list):
        if not isinstance(actual, list) or len(actual) != len(desired):
            return not desired and not actual
        return all(map(_matches, actual, desired))
    # The API server omits empty and false values.
    return actual is None and not desired
