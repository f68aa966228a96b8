"""Owner references, labels and annotations of a job's objects, and their comparison. Pure."""

import hashlib
import json
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

ANNOTATION_LAYOUT: Final = "ppojob.dev/layout-digest"
"""On StatefulSets, their pods and what these are placed by: the layout that they were made for. An
object of a job without it was made by an operator of before, for the layout that the job has."""

_ROLE_OF_SLUG: Final[dict[str, RoleName]] = {slug: role for role, slug in ROLE_SLUGS.items()}


def labels(job: Job, role: RoleName | None = None) -> dict[str, str]:
    """Labels of an object of the job, or of one of its roles."""
    common = {LABEL_MANAGED_BY: MANAGED_BY, LABEL_JOB: job.name, LABEL_JOB_UID: job.uid}
    return {**common, LABEL_ROLE: ROLE_SLUGS[role]} if role else common


def selector(job: Job, role: RoleName | None = None) -> dict[str, str]:
    """Labels that select the pods of the job, or of one of its roles, and no others."""
    every = {LABEL_JOB_UID: job.uid}
    return {**every, LABEL_ROLE: ROLE_SLUGS[role]} if role else every


def is_of(job: Job, metadata: Manifest) -> bool:
    """Whether an object is the job's: it is its owner, or made what outlives it, by its label."""
    owners = metadata.get("ownerReferences")
    if owners:
        return any(owner["uid"] == job.uid for owner in owners)
    return (metadata.get("labels") or {}).get(LABEL_JOB_UID) == job.uid


def role_of(labels_of_object: Manifest) -> RoleName | None:
    """The role that an object's labels name."""
    return _ROLE_OF_SLUG.get(str(labels_of_object.get(LABEL_ROLE, "")))


def manifest(
    kind: ChildKind, job: Job, name: str, role: RoleName | None = None, **content: Any
) -> dict[str, Any]:
    """An object of the job, collected after it: its head and `content`."""
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
    """Name of the claim that is made for a job's run."""
    return f"{job_name}-run"


def gang_name(job: Job) -> str:
    """Name of what places all pods of a job together, whoever that is."""
    return f"ppojob-{job.name}"


def layout_of(metadata: Manifest) -> str:
    """Digest of the layout that an object was made for; empty where it says nothing of it."""
    return str((metadata.get("annotations") or {}).get(ANNOTATION_LAYOUT, ""))


def controller_name(job: Job) -> str:
    """Name of the controller's service account and of what gives it its rights."""
    return workload_name(job.name, "controller")


def digest(manifest: Manifest) -> str:
    """SHA-256 of an object's canonical JSON."""
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def covers(actual: Manifest, wanted: Manifest) -> bool:
    """Whether everything that we want is so, whatever else the API server has filled in.

    The content of an immutable object is not compared: its name stands for it.
    """
    skipped = {"apiVersion", "kind"} | ({"data"} if wanted.get("immutable") else set())
    return all(
        _covers(actual.get(key), value) for key, value in wanted.items() if key not in skipped
    )


def _covers(actual: object, wanted: object) -> bool:
    # Most parts are the very same, which is soon told; only the others are gone through.
    if actual == wanted:
        return True
    # Plain JSON on both sides; the abstract types would take three times as long to ask for.
    if isinstance(wanted, dict):
        if not isinstance(actual, dict):
            return not wanted
        return all(_covers(actual.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list):
        if not isinstance(actual, list) or len(actual) != len(wanted):
            return not wanted and not actual
        return all(map(_covers, actual, wanted))
    # The API server leaves out what is empty or false.
    return actual is None and not wanted
