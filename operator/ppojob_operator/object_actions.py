"""What brings one object of a job to the content that it must have. Pure."""

from collections.abc import Iterable
from typing import Any

from ppojob_operator.build.metadata import ANNOTATION_GENERATION, ANNOTATION_TEMPLATE
from ppojob_operator.difference import covers, digest
from ppojob_operator.kinds import child_kind
from ppojob_operator.reconcile_context import ReconcileContext
from ppojob_operator.state import Action, Apply, Child, Create, Manifest


def object_actions(here: ReconcileContext, wanted: dict[str, Any]) -> Iterable[Action]:
    """What brings one object to its wanted content; nothing where it has it."""
    kind = child_kind(wanted)
    child = here.observed.children.get((kind, wanted["metadata"]["name"]))
    if child is None:
        yield Create(wanted)
    elif child.is_deleting or child.owner_uid != here.job.uid:
        # It is on its way out; its deletion wakes us.
        return
    else:
        if kind == "StatefulSet" and _is_kept(child, wanted):
            wanted = _as_begun(child, wanted)
        if not covers(child.manifest, wanted) and child.settled_digest != digest(wanted):
            yield Apply(wanted, child.uid)


def _is_kept(child: Child, wanted: Manifest) -> bool:
    """Whether the difference is only that this operator renders the same job otherwise.

    A newer operator restarts no running job, nor does it mix its pods with those of the older.
    """
    theirs = annotations(child.manifest)
    ours = annotations(wanted)
    same_job = theirs.get(ANNOTATION_GENERATION) == ours[ANNOTATION_GENERATION]
    return same_job and theirs.get(ANNOTATION_TEMPLATE) != ours[ANNOTATION_TEMPLATE]


def _as_begun(child: Child, wanted: Manifest) -> dict[str, Any]:
    """A StatefulSet as the other operator made it: with pods, where somebody has scaled it to 0."""
    spec = child.manifest["spec"]
    replicas = spec["replicas"] or wanted["spec"]["replicas"]
    return {**child.manifest, "spec": {**spec, "replicas": replicas}}


def annotations(manifest: Manifest) -> dict[str, str]:
    """The annotations of an object."""
    return dict(manifest["metadata"].get("annotations") or {})
