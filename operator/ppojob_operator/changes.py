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
    digest,
    gang_name,
    is_of,
    is_up_to_date,
)
from ppojob_operator.build.objects import (
    base_objects,
    key_templates,
    pod_sets,
    role_bindings,
    stateful_sets,
)
from ppojob_operator.build.pod_template import PodConfig, config_map_name
from ppojob_operator.conditions import holds, rfc3339, sanitized
from ppojob_operator.kinds import GANG_KINDS, child_key, child_kind
from ppojob_operator.policies.admission import NOT_FROM_QUEUE
from ppojob_operator.policies.pods_ready import pods_ready
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
    Waves,
)

_STUCK_SECONDS = 30.0
"""A pod that waits this long for its mounts may lack its Secret, which is not watched."""


def changes(ctx: ReconcileContext, defaults: Settings) -> Waves:
    """Actions in waves: what pods need, then the StatefulSets, then deletions."""
    gang = tuple(_gang_changes(ctx, defaults))
    queue = tuple(_queue_changes(ctx))
    config = ctx.config
    if config is None or not ctx.desired:
        return (tuple(_unneeded_sets(ctx)), gang, queue)
    # The StatefulSets of a stopping job are deleted one after the other, without other changes.
    sets = _set_actions(ctx, config, defaults) if ctx.should_run else []
    config_name = config_map_name(ctx.job, config)
    around = [
        action
        for desired in base_objects(ctx.job, config, is_partly_placed=_is_partly_placed(ctx))
        if desired["metadata"]["name"] != config_name or sets or _is_in_use(ctx, config)
        for action in _object_actions(ctx, desired)
    ]
    keys: list[Action] = []
    if any(isinstance(action, Create) for action in sets) or _is_stuck(ctx):
        keys.append(CreateKeys(key_templates(ctx.job, config)))
    rest: list[Action] = [
        *_unneeded_sets(ctx),
        *_unused_configs(ctx, config),
        *_unused_services(ctx),
    ]
    if ctx.should_run and not (around or sets):
        rest += _outdated_controller(ctx)
    bound = [
        action
        for desired in role_bindings(ctx.job, config, defaults)
        for action in _object_actions(ctx, desired)
    ]
    return ((*keys, *around, *gang), (*sets, *bound), (*rest, *queue))


def written_objects(waves: Waves) -> Set[tuple[ChildKind, str]]:
    """The objects that a plan creates or applies."""
    acts = (action for wave in waves for action in wave)
    return {child_key(one.manifest) for one in acts if isinstance(one, Create | Apply | CreateKeys)}


def _set_actions(ctx: ReconcileContext, config: PodConfig, defaults: Settings) -> list[Action]:
    roles = (config.run.topology.role(role) for role in ctx.desired)
    rendered = stateful_sets(ctx.job, config, roles, defaults, ctx.admission.placements)
    return [action for desired in rendered for action in _object_actions(ctx, desired)]


def _is_partly_placed(ctx: ReconcileContext) -> bool:
    pods = ctx.observed.pods
    return any(pod.unschedulable for pod in pods) and any(pod.node for pod in pods)


def _is_in_use(ctx: ReconcileContext, config: PodConfig) -> bool:
    """Whether a pod or a StatefulSet mounts this configuration."""
    is_mounted = any(pod.config_digest == config.digest for pod in ctx.observed.pods)
    return is_mounted or any(_mounts(ctx, role, config) for role in ctx.desired)


def _is_stuck(ctx: ReconcileContext) -> bool:
    return any(
        pod.waiting_reason == "ContainerCreating"
        and (ctx.now - pod.created).total_seconds() > _STUCK_SECONDS
        for pod in ctx.observed.pods
    )


def _unneeded_sets(ctx: ReconcileContext) -> Iterable[Action]:
    keep = {workload_name(ctx.job.name, role) for role in ctx.desired}
    known = {workload_name(ctx.job.name, role) for role in ctx.roles}
    in_use = _configs_of_controllers(ctx) if ctx.desired else set()
    for child in ctx.observed.children_of("StatefulSet"):
        # Another version of the operator may have started the job with a role that this one does
        # not know: its controller waits for the pods of that role.
        if child.name not in keep and (child.name in known or _config_of(child) not in in_use):
            yield _deletion(child)


def _deletion(child: Child) -> Delete:
    return Delete(child.kind, child.name, child.uid)


def _configs_of_controllers(ctx: ReconcileContext) -> set[str]:
    """The configurations of the current and the next controller."""
    child = _set_of(ctx, "controller")
    running = {pod.config_digest for pod in ctx.observed.pods_of("controller")}
    return running | {_config_of(child)} if child else running


def _unused_configs(ctx: ReconcileContext, config: PodConfig) -> Iterable[Action]:
    """Previous configurations that no pod mounts."""
    if not all(_mounts(ctx, role, config) for role in ctx.desired):
        return
    used = {pod.config_digest for pod in ctx.observed.pods} | {config.digest, None}
    for child in ctx.observed.children_of("ConfigMap"):
        if _annotations(child.manifest).get(ANNOTATION_CONFIG_DIGEST) not in used:
            yield _deletion(child)


def _unused_services(ctx: ReconcileContext) -> Iterable[Action]:
    """Services of roles of a previous layout."""
    known = {workload_name(ctx.job.name, role) for role in ctx.roles}
    for child in ctx.observed.children_of("Service"):
        is_unused = ("StatefulSet", child.name) not in ctx.observed.children
        if child.owner_uid == ctx.job.uid and child.name not in known and is_unused:
            yield _deletion(child)


def _mounts(ctx: ReconcileContext, role: RoleName, config: PodConfig) -> bool:
    child = _set_of(ctx, role)
    return child is not None and _config_of(child) == config.digest


def _outdated_controller(ctx: ReconcileContext) -> Iterable[Action]:
    """A controller pod with another configuration than its StatefulSet.

    On SIGTERM it finishes its step and writes a checkpoint, and the next one reads the new
    configuration. The ranks of all roles keep running.
    """
    child = _set_of(ctx, "controller")
    if child is None:
        return
    for pod in ctx.observed.pods_of("controller"):
        if pod.config_digest != _config_of(child) and not pod.is_deleting:
            yield Delete("Pod", pod.name, pod.uid)


def _set_of(ctx: ReconcileContext, role: RoleName) -> Child | None:
    return ctx.observed.children.get(("StatefulSet", workload_name(ctx.job.name, role)))


def _config_of(child: Child) -> str:
    template = child.manifest["spec"]["template"]
    return str(_annotations(template).get(ANNOTATION_CONFIG_DIGEST, ""))


def _object_actions(ctx: ReconcileContext, desired: dict[str, Any]) -> Iterable[Action]:
    """Actions that give an object its desired content."""
    kind = child_kind(desired)
    child = ctx.observed.children.get((kind, desired["metadata"]["name"]))
    # The API server refuses to create an object whose name an orphan has; a condition names it.
    if child is None or _is_orphan(ctx, child):
        yield Create(desired)
    elif child.is_deleting or child.owner_uid != ctx.job.uid or kind == "PersistentVolumeClaim":
        # Its deletion enqueues the job; and users may expand a claim.
        return
    else:
        if kind == "StatefulSet" and _is_of_other_operator(child, desired):
            desired = _as_created(child, desired)
        if not is_up_to_date(child.manifest, desired) and child.mutated_digest != digest(desired):
            yield Apply(desired, child.uid)


def _is_orphan(ctx: ReconcileContext, child: Child) -> bool:
    """Whether an earlier job left the object: a retained claim, or after `--cascade=orphan`."""
    is_owned = child.is_deleting or bool(child.owner_uid)
    return not is_owned and not is_of(ctx.job, child.manifest["metadata"])


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


def _gang_changes(ctx: ReconcileContext, defaults: Settings) -> Iterable[Action]:
    if not ctx.wants_gang:
        yield from _unneeded_gang(ctx)
        return
    gang = GANGS.get(ctx.job.scheduling.type)
    if gang is None or ctx.config is None or ctx.has_old_layout:
        return
    if not ctx.observed.gangs.served.issuperset(gang.kinds):
        return
    sets = pod_sets(ctx.job, ctx.config, defaults)
    for one in gang.objects(ctx.job, sets, ctx.observed.gangs):
        one["metadata"]["annotations"] = {ANNOTATION_LAYOUT: ctx.config.layout}
        yield from (action for action in _object_actions(ctx, one) if _is_free(ctx, action))
        if (child_kind(one), one["metadata"]["name"]) not in ctx.observed.children:
            # The API server accepts a PodGroup only after its Workload.
            return


def _queue_changes(ctx: ReconcileContext) -> Iterator[Action]:
    """Actions that report to Kueue: whether the pods are ready, and how the job ended."""
    child = kueue.own_workload(ctx.job, ctx.observed)
    if child is None:
        return
    answer = kueue.answer(child)
    if answer.holds("Finished"):
        return
    if ctx.has_ended and ctx.observed.pods:
        # Its pods may be writing a checkpoint and still use the quota.
        return
    evicted = answer.holds("Evicted") and answer.holds("QuotaReserved")
    if evicted and not ctx.observed.pods and not ctx.has_ended:
        yield ReleaseQuota(child.name, child.uid)
        return
    if ctx.has_ended:
        status = ctx.job.status
        reason = "Succeeded" if holds(status, "Complete") else "Failed"
        message = sanitized(f"{status.reason}: {status.message}")
        conditions = {"Finished": kueue.QueueCondition("True", reason, message)}
    else:
        conditions = _readiness(ctx, answer)
    if conditions:
        manifest = kueue.conditions(ctx.job, conditions, rfc3339(ctx.now))
        yield ApplyStatus(manifest, child.uid)


def _readiness(ctx: ReconcileContext, answer: kueue.Answer) -> dict[str, kueue.QueueCondition]:
    """The condition by which Kueue evicts a job whose pods never become ready."""
    if ctx.admission.admitted.reason in NOT_FROM_QUEUE:
        return {}
    is_ready = bool(ctx.admission.admitted.holds and pods_ready(ctx.roles, ctx.observed, 0.0).holds)
    was = answer.conditions.get("PodsReady")
    value = str(is_ready)
    if value == (was.status if was else "False"):
        return {}
    if is_ready:
        reason = "Recovered" if was and was.reason == "WaitForRecovery" else "Started"
        return {"PodsReady": kueue.QueueCondition(value, reason, "all pods are ready")}
    reason = "WaitForRecovery" if ctx.admission.admitted.holds else "WaitForStart"
    return {"PodsReady": kueue.QueueCondition(value, reason, "not all pods are ready")}


def _is_free(ctx: ReconcileContext, action: Action) -> bool:
    """Whether the Workload may be created or changed now."""
    if ctx.job.scheduling.type != "kueue":
        return True
    if isinstance(action, Create):
        # Previous pods still use resources that a new admission would count again.
        return not ctx.observed.pods
    child = ctx.observed.children[kueue.KIND, gang_name(ctx.job)]
    # The admission is for the pods as they are; an edit applies to the next admission.
    return not kueue.answer(child).holds("QuotaReserved")


def _unneeded_gang(ctx: ReconcileContext) -> Iterator[Action]:
    """Objects of gang scheduling that reserve resources for pods that a job no longer has."""
    for kind in GANG_KINDS:
        # Kueue itself deletes the Workload of a finished job.
        if not (ctx.has_ended and kind == kueue.KIND):
            yield from map(_deletion, ctx.observed.children_of(kind))
