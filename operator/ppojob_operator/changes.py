"""What must be made, changed and deleted so that a job has the objects it is to have. Pure."""

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
    role_binding,
    stateful_sets,
)
from ppojob_operator.build.pod_template import PodConfig, config_map_name
from ppojob_operator.conditions import holds, inert, rfc3339
from ppojob_operator.kinds import GANG_KINDS, child_key, child_kind
from ppojob_operator.policies.placing import NOT_ASKED
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
    Delete,
    DeletePod,
    MakeKeys,
    Manifest,
    ReleaseQuota,
)

_STUCK_SECONDS = 30.0
"""A pod that waits for its mounts for so long may lack its Secret, which nobody watches."""

Waves = tuple[tuple[Action, ...], ...]


def changes(here: ReconcileContext, defaults: Settings) -> Waves:
    """The actions: first what pods need, then the pods, then what nobody needs any more."""
    gang = tuple(_gang_changes(here, defaults))
    told = tuple(_queue_changes(here))
    config = here.config
    if config is None or not here.wanted:
        return (tuple(_unwanted_sets(here)), gang, told)
    # A job that is not to run gives its StatefulSets up, one after the other, as they are.
    sets = _set_actions(here, config, defaults) if here.runs else []
    config_name = config_map_name(here.job, config)
    around = [
        action
        for wanted in base_objects(here.job, config, is_short=_is_short(here))
        if wanted["metadata"]["name"] != config_name or sets or _is_in_use(here, config)
        for action in _object_actions(here, wanted)
    ]
    keys: list[Action] = []
    if any(isinstance(action, Create) for action in sets) or _is_stuck(here):
        keys.append(MakeKeys(key_templates(here.job, config)))
    rest: list[Action] = [
        *_unwanted_sets(here),
        *_unused_configs(here, config),
        *_unused_services(here),
    ]
    if here.runs and not (around or sets):
        rest += _outdated_controller(here)
    bound = _object_actions(here, role_binding(here.job))
    return ((*keys, *around, *gang), (*sets, *bound), (*rest, *told))


def made(waves: Waves) -> Set[tuple[ChildKind, str]]:
    """The objects that are to be made, or given other content."""
    acts = (action for wave in waves for action in wave)
    return {child_key(one.manifest) for one in acts if isinstance(one, Create | Apply | MakeKeys)}


def _set_actions(here: ReconcileContext, config: PodConfig, defaults: Settings) -> list[Action]:
    roles = (config.run.topology.role(role) for role in here.wanted)
    rendered = stateful_sets(here.job, config, roles, defaults, here.admission.placements)
    return [action for wanted in rendered for action in _object_actions(here, wanted)]


def _is_short(here: ReconcileContext) -> bool:
    """Whether some pods have a place, and others found none."""
    pods = here.observed.pods
    return any(pod.unschedulable for pod in pods) and any(pod.node for pod in pods)


def _is_in_use(here: ReconcileContext, config: PodConfig) -> bool:
    """Whether a pod mounts this very configuration, or the next one will."""
    is_mounted = any(pod.config_digest == config.digest for pod in here.observed.pods)
    return is_mounted or any(_mounts(here, role, config) for role in here.wanted)


def _is_stuck(here: ReconcileContext) -> bool:
    return any(
        pod.waiting_reason == "ContainerCreating"
        and (here.now - pod.created).total_seconds() > _STUCK_SECONDS
        for pod in here.observed.pods
    )


def _unwanted_sets(here: ReconcileContext) -> Iterable[Action]:
    keep = {workload_name(here.job.name, role) for role in here.wanted}
    known = {workload_name(here.job.name, role) for role in here.roles}
    asked = _configs_of_controllers(here) if here.wanted else set()
    for (kind, name), child in here.observed.children.items():
        if kind != "StatefulSet" or name in keep or child.is_deleting:
            continue
        # A role that this operator does not give the job, but that which began it did: a
        # controller that has begun with it waits for its pods.
        if name in known or _config_of(child) not in asked:
            yield Delete(kind, name, child.uid)


def _configs_of_controllers(here: ReconcileContext) -> set[str]:
    """What the controller that is there runs, and the next one will."""
    child = _set_of(here, "controller")
    running = {pod.config_digest for pod in here.observed.pods_of("controller")}
    return running | {_config_of(child)} if child else running


def _unused_configs(here: ReconcileContext, config: PodConfig) -> Iterable[Action]:
    """Configurations of before; a pod that is still there may mount its own again."""
    if not all(_mounts(here, role, config) for role in here.wanted):
        return
    used = {pod.config_digest for pod in here.observed.pods} | {config.digest}
    for (kind, name), child in here.observed.children.items():
        if kind == "ConfigMap" and not child.is_deleting:
            theirs = _annotations(child.manifest).get(ANNOTATION_CONFIG_DIGEST)
            if theirs is not None and theirs not in used:
                yield Delete(kind, name, child.uid)


def _unused_services(here: ReconcileContext) -> Iterable[Action]:
    """Services of roles that another layout had pods for."""
    known = {workload_name(here.job.name, role) for role in here.roles}
    children = here.observed.children
    for (kind, name), child in children.items():
        is_ours = kind == "Service" and child.owner_uid == here.job.uid and not child.is_deleting
        if is_ours and name not in known and ("StatefulSet", name) not in children:
            yield Delete(kind, name, child.uid)


def _mounts(here: ReconcileContext, role: RoleName, config: PodConfig) -> bool:
    child = _set_of(here, role)
    return child is not None and _config_of(child) == config.digest


def _outdated_controller(here: ReconcileContext) -> Iterable[Action]:
    """A controller that runs another configuration than its StatefulSet says.

    Told to end it writes a checkpoint after its step, and the next one reads the new configuration;
    the ranks of all roles go on.
    """
    child = _set_of(here, "controller")
    if child is None:
        return
    for pod in here.observed.pods_of("controller"):
        if pod.config_digest != _config_of(child) and not pod.is_deleting:
            yield DeletePod(pod.name, pod.uid)


def _set_of(here: ReconcileContext, role: RoleName) -> Child | None:
    return here.observed.children.get(("StatefulSet", workload_name(here.job.name, role)))


def _config_of(child: Child) -> str:
    template = child.manifest["spec"]["template"]
    return str(_annotations(template).get(ANNOTATION_CONFIG_DIGEST, ""))


def _object_actions(here: ReconcileContext, wanted: dict[str, Any]) -> Iterable[Action]:
    """What brings one object to its wanted content; nothing where it has it."""
    kind = child_kind(wanted)
    child = here.observed.children.get((kind, wanted["metadata"]["name"]))
    if child is None:
        yield Create(wanted)
    elif _is_orphan(here, child):
        # Only a person may delete it: the create is refused, and a condition names it.
        yield Create(wanted)
    elif child.is_deleting or child.owner_uid != here.job.uid or kind == "PersistentVolumeClaim":
        # It is on its way out, and its deletion wakes us; or its user may let it grow.
        return
    else:
        if kind == "StatefulSet" and _is_kept(child, wanted):
            wanted = _as_first_made(child, wanted)
        if not covers(child.manifest, wanted) and child.settled_digest != digest(wanted):
            yield Apply(wanted, child.uid)


def _is_orphan(here: ReconcileContext, child: Child) -> bool:
    """Whether an earlier job has left it, as a claim that outlives it or by `--cascade=orphan`."""
    is_owned = child.is_deleting or bool(child.owner_uid)
    return not is_owned and not is_of(here.job, child.manifest["metadata"])


def _is_kept(child: Child, wanted: Manifest) -> bool:
    """Whether the difference is only that this operator renders the same job otherwise.

    A newer operator restarts no running job, nor does it mix its pods with those of the older.
    """
    theirs = _annotations(child.manifest)
    ours = _annotations(wanted)
    same_job = theirs.get(ANNOTATION_GENERATION) == ours[ANNOTATION_GENERATION]
    return same_job and theirs.get(ANNOTATION_TEMPLATE) != ours[ANNOTATION_TEMPLATE]


def _as_first_made(child: Child, wanted: Manifest) -> dict[str, Any]:
    """A StatefulSet as the other operator made it; one that was scaled to 0 gets its pods back."""
    spec = child.manifest["spec"]
    replicas = spec["replicas"] or wanted["spec"]["replicas"]
    return {**child.manifest, "spec": {**spec, "replicas": replicas}}


def _annotations(manifest: Manifest) -> dict[str, str]:
    """The annotations of an object."""
    return dict(manifest["metadata"].get("annotations") or {})


def _gang_changes(here: ReconcileContext, defaults: Settings) -> Iterable[Action]:
    """The actions: objects that pods are placed by, and what a queue is told."""
    if not here.wants_gang:
        yield from _unwanted_gang(here)
        return
    gang = GANGS.get(here.job.scheduling.type)
    if gang is None or here.config is None or here.moves:
        return
    if not here.observed.gangs.served.issuperset(gang.kinds):
        return
    sets = pod_sets(here.job, here.config, defaults)
    for one in gang.objects(here.job, sets, here.observed.gangs):
        one["metadata"]["annotations"] = {ANNOTATION_LAYOUT: here.config.layout}
        yield from (action for action in _object_actions(here, one) if _is_free(here, action))
        if (child_kind(one), one["metadata"]["name"]) not in here.observed.children:
            # The API server takes a PodGroup only where it has heard of its Workload.
            return


def _queue_changes(here: ReconcileContext) -> Iterator[Action]:
    """What Kueue gets to know: whether the pods are ready, and how the job ended."""
    child = kueue.own_workload(here.job, here.observed)
    if child is None:
        return
    answer = kueue.answer(child)
    if answer.holds("Finished"):
        return
    if here.has_ended and here.observed.pods:
        # They may be writing a checkpoint, and what they hold would be given to another job.
        return
    evicted = answer.holds("Evicted") and answer.holds("QuotaReserved")
    if evicted and not here.observed.pods and not here.has_ended:
        yield ReleaseQuota(child.name, child.uid)
        return
    if here.has_ended:
        status = here.job.status
        reason = "Succeeded" if holds(status, "Complete") else "Failed"
        words = inert(f"{status.reason}: {status.message}")
        told = {"Finished": kueue.QueueCondition("True", reason, words)}
    else:
        told = _readiness(here, answer)
    if told:
        manifest = kueue.conditions(here.job, told, rfc3339(here.now))
        yield ApplyStatus(manifest, child.uid)


def _readiness(here: ReconcileContext, answer: kueue.Answer) -> dict[str, kueue.QueueCondition]:
    """The condition by which Kueue takes quota back from a job whose pods never start."""
    if here.admission.claim.reason in NOT_ASKED:
        return {}
    is_ready = bool(here.admission.claim.holds and pods_ready(here.roles, here.observed, 0.0).holds)
    was = answer.conditions.get("PodsReady")
    value = str(is_ready)
    if value == (was.status if was else "False"):
        return {}
    if is_ready:
        reason = "Recovered" if was and was.reason == "WaitForRecovery" else "Started"
        return {"PodsReady": kueue.QueueCondition(value, reason, "all pods are ready")}
    reason = "WaitForRecovery" if here.admission.claim.holds else "WaitForStart"
    return {"PodsReady": kueue.QueueCondition(value, reason, "not all pods are ready")}


def _is_free(here: ReconcileContext, action: Action) -> bool:
    """Whether a queue may be asked now."""
    if here.job.scheduling.type != "kueue":
        return True
    if isinstance(action, Create):
        # Pods of before still hold what another admission would count anew.
        return not here.observed.pods
    child = here.observed.children[kueue.KIND, gang_name(here.job)]
    # What was admitted is what the pods are: an edit is for the next admission.
    return not kueue.answer(child).holds("QuotaReserved")


def _unwanted_gang(here: ReconcileContext) -> Iterator[Action]:
    """Objects of a job that has no pods and is to have none: what they reserve is free."""
    for (kind, name), child in here.observed.children.items():
        # What Kueue shows of a job that has ended it keeps as long as it likes.
        is_record = here.has_ended and kind == kueue.KIND
        if kind in GANG_KINDS and not child.is_deleting and not is_record:
            yield Delete(kind, name, child.uid)
