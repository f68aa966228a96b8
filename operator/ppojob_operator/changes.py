"""Difference between the observed and the desired objects of a job, as actions. Pure."""

from collections.abc import Iterable, Iterator, Set
from typing import Any

from ppojob_api.well_known import ANNOTATION_CONFIG_DIGEST, RoleName, workload_name
from ppojob_operator.build import kueue
from ppojob_operator.build.gang import GANGS
from ppojob_operator.build.metadata import (
    ANNOTATION_GENERATION,
    ANNOTATION_LAYOUT,
    ANNOTATION_TEMPLATE,
    covers,
    digest,
    gang_name,
    is_of,
)
from ppojob_operator.build.objects import (
    base_objects,
    key_templates,
    pod_sets,
    role_bindings,
    stateful_sets,
)
from ppojob_operator.build.pod_template import PodConfig, config_map_name
from ppojob_operator.conditions import holds, inert, rfc3339
from ppojob_operator.kinds import GANG_KINDS, child_key, child_kind
from ppojob_operator.policies.placing import NOT_OF_QUEUE
from ppojob_operator.policies.startup import pods_ready
from ppojob_operator.reconcile_context import ReconcileContext
from ppojob_operator.settings import Settings
from ppojob_operator.state import (
    Action,
    Apply,
    ApplyStatus,
    Child,
    ChildKind,
    Create,
    CreateKeys,
    Delete,
    Manifest,
    ReleaseQuota,
)

_STUCK_SECONDS = 30.0
"""A pod that waits this long for its mounts may lack its Secret, which is not watched."""

Waves = tuple[tuple[Action, ...], ...]


def changes(here: ReconcileContext, defaults: Settings) -> Waves:
    """Actions in waves: what pods need, then the StatefulSets, then deletions."""
    gang = tuple(_gang_changes(here, defaults))
    queue = tuple(_queue_changes(here))
    config = here.config
    if config is None or not here.desired:
        return (tuple(_unneeded_sets(here)), gang, queue)
    # The StatefulSets of a stopping job are deleted one after the other, without other changes.
    sets = _set_actions(here, config, defaults) if here.should_run else []
    config_name = config_map_name(here.job, config)
    around = [
        action
        for desired in base_objects(here.job, config, is_partly_placed=_is_partly_placed(here))
        if desired["metadata"]["name"] != config_name or sets or _is_in_use(here, config)
        for action in _object_actions(here, desired)
    ]
    keys: list[Action] = []
    if any(isinstance(action, Create) for action in sets) or _is_stuck(here):
        keys.append(CreateKeys(key_templates(here.job, config)))
    rest: list[Action] = [
        *_unneeded_sets(here),
        *_unused_configs(here, config),
        *_unused_services(here),
    ]
    if here.should_run and not (around or sets):
        rest += _outdated_controller(here)
    bound = [
        action
        for desired in role_bindings(here.job, config, defaults)
        for action in _object_actions(here, desired)
    ]
    return ((*keys, *around, *gang), (*sets, *bound), (*rest, *queue))


def written_objects(waves: Waves) -> Set[tuple[ChildKind, str]]:
    """The objects that a plan creates or applies."""
    acts = (action for wave in waves for action in wave)
    return {child_key(one.manifest) for one in acts if isinstance(one, Create | Apply | CreateKeys)}


def _set_actions(here: ReconcileContext, config: PodConfig, defaults: Settings) -> list[Action]:
    roles = (config.run.topology.role(role) for role in here.desired)
    rendered = stateful_sets(here.job, config, roles, defaults, here.admission.placements)
    return [action for desired in rendered for action in _object_actions(here, desired)]


def _is_partly_placed(here: ReconcileContext) -> bool:
    pods = here.observed.pods
    return any(pod.unschedulable for pod in pods) and any(pod.node for pod in pods)


def _is_in_use(here: ReconcileContext, config: PodConfig) -> bool:
    """Whether a pod or a StatefulSet mounts this configuration."""
    is_mounted = any(pod.config_digest == config.digest for pod in here.observed.pods)
    return is_mounted or any(_mounts(here, role, config) for role in here.desired)


def _is_stuck(here: ReconcileContext) -> bool:
    return any(
        pod.waiting_reason == "ContainerCreating"
        and (here.now - pod.created).total_seconds() > _STUCK_SECONDS
        for pod in here.observed.pods
    )


def _unneeded_sets(here: ReconcileContext) -> Iterable[Action]:
    keep = {workload_name(here.job.name, role) for role in here.desired}
    known = {workload_name(here.job.name, role) for role in here.roles}
    in_use = _configs_of_controllers(here) if here.desired else set()
    for child in here.observed.children_of("StatefulSet"):
        # Another version of the operator may have started the job with a role that this one does
        # not know: its controller waits for the pods of that role.
        if child.name not in keep and (child.name in known or _config_of(child) not in in_use):
            yield _deletion(child)


def _deletion(child: Child) -> Delete:
    return Delete(child.kind, child.name, child.uid)


def _configs_of_controllers(here: ReconcileContext) -> set[str]:
    """The configurations of the current and the next controller."""
    child = _set_of(here, "controller")
    running = {pod.config_digest for pod in here.observed.pods_of("controller")}
    return running | {_config_of(child)} if child else running


def _unused_configs(here: ReconcileContext, config: PodConfig) -> Iterable[Action]:
    """Previous configurations that no pod mounts."""
    if not all(_mounts(here, role, config) for role in here.desired):
        return
    used = {pod.config_digest for pod in here.observed.pods} | {config.digest, None}
    for child in here.observed.children_of("ConfigMap"):
        if _annotations(child.manifest).get(ANNOTATION_CONFIG_DIGEST) not in used:
            yield _deletion(child)


def _unused_services(here: ReconcileContext) -> Iterable[Action]:
    """Services of roles of a previous layout."""
    known = {workload_name(here.job.name, role) for role in here.roles}
    for child in here.observed.children_of("Service"):
        is_unused = ("StatefulSet", child.name) not in here.observed.children
        if child.owner_uid == here.job.uid and child.name not in known and is_unused:
            yield _deletion(child)


def _mounts(here: ReconcileContext, role: RoleName, config: PodConfig) -> bool:
    child = _set_of(here, role)
    return child is not None and _config_of(child) == config.digest


def _outdated_controller(here: ReconcileContext) -> Iterable[Action]:
    """A controller pod with another configuration than its StatefulSet.

    On SIGTERM it finishes its step and writes a checkpoint, and the next one reads the new
    configuration. The ranks of all roles keep running.
    """
    child = _set_of(here, "controller")
    if child is None:
        return
    for pod in here.observed.pods_of("controller"):
        if pod.config_digest != _config_of(child) and not pod.is_deleting:
            yield Delete("Pod", pod.name, pod.uid)


def _set_of(here: ReconcileContext, role: RoleName) -> Child | None:
    return here.observed.children.get(("StatefulSet", workload_name(here.job.name, role)))


def _config_of(child: Child) -> str:
    template = child.manifest["spec"]["template"]
    return str(_annotations(template).get(ANNOTATION_CONFIG_DIGEST, ""))


def _object_actions(here: ReconcileContext, desired: dict[str, Any]) -> Iterable[Action]:
    """Actions that give an object its desired content."""
    kind = child_kind(desired)
    child = here.observed.children.get((kind, desired["metadata"]["name"]))
    # The API server refuses to create an object whose name an orphan has; a condition names it.
    if child is None or _is_orphan(here, child):
        yield Create(desired)
    elif child.is_deleting or child.owner_uid != here.job.uid or kind == "PersistentVolumeClaim":
        # Its deletion enqueues the job; and users may expand a claim.
        return
    else:
        if kind == "StatefulSet" and _is_of_other_operator(child, desired):
            desired = _as_created(child, desired)
        if not covers(child.manifest, desired) and child.settled_digest != digest(desired):
            yield Apply(desired, child.uid)


def _is_orphan(here: ReconcileContext, child: Child) -> bool:
    """Whether an earlier job left the object: a retained claim, or after `--cascade=orphan`."""
    is_owned = child.is_deleting or bool(child.owner_uid)
    return not is_owned and not is_of(here.job, child.manifest["metadata"])


def _is_of_other_operator(child: Child, desired: Manifest) -> bool:
    """Whether another version of the operator rendered the same generation of the job.

    An upgraded operator restarts no running job, and never mixes its pods with those of the older
    version.
    """
    actual, ours = _annotations(child.manifest), _annotations(desired)
    same_job = actual.get(ANNOTATION_GENERATION) == ours[ANNOTATION_GENERATION]
    return same_job and actual.get(ANNOTATION_TEMPLATE) != ours[ANNOTATION_TEMPLATE]


def _as_created(child: Child, desired: Manifest) -> dict[str, Any]:
    """The StatefulSet as that operator rendered it; if scaled to 0, with its replicas."""
    spec = child.manifest["spec"]
    replicas = spec["replicas"] or desired["spec"]["replicas"]
    return {**child.manifest, "spec": {**spec, "replicas": replicas}}


def _annotations(manifest: Manifest) -> dict[str, str]:
    return dict(manifest["metadata"].get("annotations") or {})


def _gang_changes(here: ReconcileContext, defaults: Settings) -> Iterable[Action]:
    if not here.wants_gang:
        yield from _unneeded_gang(here)
        return
    gang = GANGS.get(here.job.scheduling.type)
    if gang is None or here.config is None or here.has_old_layout:
        return
    if not here.observed.gangs.served.issuperset(gang.kinds):
        return
    sets = pod_sets(here.job, here.config, defaults)
    for one in gang.objects(here.job, sets, here.observed.gangs):
        one["metadata"]["annotations"] = {ANNOTATION_LAYOUT: here.config.layout}
        yield from (action for action in _object_actions(here, one) if _is_free(here, action))
        if (child_kind(one), one["metadata"]["name"]) not in here.observed.children:
            # The API server accepts a PodGroup only after its Workload.
            return


def _queue_changes(here: ReconcileContext) -> Iterator[Action]:
    """Actions that report to Kueue: whether the pods are ready, and how the job ended."""
    child = kueue.own_workload(here.job, here.observed)
    if child is None:
        return
    answer = kueue.answer(child)
    if answer.holds("Finished"):
        return
    if here.has_ended and here.observed.pods:
        # Its pods may be writing a checkpoint and still use the quota.
        return
    evicted = answer.holds("Evicted") and answer.holds("QuotaReserved")
    if evicted and not here.observed.pods and not here.has_ended:
        yield ReleaseQuota(child.name, child.uid)
        return
    if here.has_ended:
        status = here.job.status
        reason = "Succeeded" if holds(status, "Complete") else "Failed"
        message = inert(f"{status.reason}: {status.message}")
        conditions = {"Finished": kueue.QueueCondition("True", reason, message)}
    else:
        conditions = _readiness(here, answer)
    if conditions:
        manifest = kueue.conditions(here.job, conditions, rfc3339(here.now))
        yield ApplyStatus(manifest, child.uid)


def _readiness(here: ReconcileContext, answer: kueue.Answer) -> dict[str, kueue.QueueCondition]:
    """The condition by which Kueue evicts a job whose pods never become ready."""
    if here.admission.admitted.reason in NOT_OF_QUEUE:
        return {}
    is_ready = bool(
        here.admission.admitted.holds and pods_ready(here.roles, here.observed, 0.0).holds
    )
    was = answer.conditions.get("PodsReady")
    value = str(is_ready)
    if value == (was.status if was else "False"):
        return {}
    if is_ready:
        reason = "Recovered" if was and was.reason == "WaitForRecovery" else "Started"
        return {"PodsReady": kueue.QueueCondition(value, reason, "all pods are ready")}
    reason = "WaitForRecovery" if here.admission.admitted.holds else "WaitForStart"
    return {"PodsReady": kueue.QueueCondition(value, reason, "not all pods are ready")}


def _is_free(here: ReconcileContext, action: Action) -> bool:
    """Whether the Workload may be created or changed now."""
    if here.job.scheduling.type != "kueue":
        return True
    if isinstance(action, Create):
        # Previous pods still use resources that a new admission would count again.
        return not here.observed.pods
    child = here.observed.children[kueue.KIND, gang_name(here.job)]
    # The admission is for the pods as they are; an edit applies to the next admission.
    return not kueue.answer(child).holds("QuotaReserved")


def _unneeded_gang(here: ReconcileContext) -> Iterator[Action]:
    """Objects of gang scheduling that reserve resources for pods that a job no longer has."""
    for kind in GANG_KINDS:
        # Kueue itself deletes the Workload of a finished job.
        if not (here.has_ended and kind == kueue.KIND):
            yield from map(_deletion, here.observed.children_of(kind))
