"""What must be made, changed and deleted so that a job has the objects it is to have. Pure."""

from collections.abc import Iterable, Set

from ppojob_api.well_known import ANNOTATION_CONFIG_DIGEST, RoleName, workload_name
from ppojob_operator.build.config_map import PodConfig, config_map_name
from ppojob_operator.build.objects import bindings, key_templates, stateful_sets, surroundings
from ppojob_operator.gang_changes import gang_changes, told_to_queue
from ppojob_operator.kinds import child_key
from ppojob_operator.object_actions import annotations, object_actions
from ppojob_operator.reconcile_context import ReconcileContext
from ppojob_operator.settings import Settings
from ppojob_operator.state import (
    Action,
    Apply,
    Child,
    ChildKind,
    Create,
    Delete,
    DeletePod,
    MakeKeys,
)

_STUCK_SECONDS = 30.0
"""A pod that waits for its mounts for so long may lack its Secret, which nobody watches."""

Waves = tuple[tuple[Action, ...], ...]


def changes(here: ReconcileContext, defaults: Settings) -> Waves:
    """The actions: first what pods need, then the pods, then what nobody needs any more."""
    gang = tuple(gang_changes(here, defaults))
    told = tuple(told_to_queue(here))
    config = here.config
    if config is None or not here.wanted:
        return (tuple(_unwanted_sets(here)), gang, told)
    # A job that is not to run gives its StatefulSets up, one after the other, as they are.
    sets = _set_actions(here, config, defaults) if here.runs else []
    config_name = config_map_name(here.job, config)
    around = [
        action
        for wanted in surroundings(here.job, config)
        if wanted["metadata"]["name"] != config_name or sets or _is_in_use(here, config)
        for action in object_actions(here, wanted)
    ]
    bound = [one for wanted in bindings(here.job) for one in object_actions(here, wanted)]
    keys: list[Action] = []
    if any(isinstance(action, Create) for action in sets) or _is_stuck(here):
        keys.append(MakeKeys(key_templates(here.job, config)))
    rest: list[Action] = [*_unwanted_sets(here), *_unused_configs(here, config)]
    if here.runs and not (around or sets):
        rest += _outdated_controller(here)
    return ((*keys, *around, *gang), (*sets, *bound), (*rest, *told))


def made(waves: Waves) -> Set[tuple[ChildKind, str]]:
    """The objects that are to be made, or given other content."""
    acts = (action for wave in waves for action in wave)
    return {child_key(one.manifest) for one in acts if isinstance(one, Create | Apply)}


def _set_actions(here: ReconcileContext, config: PodConfig, defaults: Settings) -> list[Action]:
    roles = tuple(config.run.topology.role(one.role) for one in here.wanted)
    placements = here.admission.placements
    rendered = stateful_sets(here.job, config, roles, here.pods, defaults, placements)
    return [action for wanted in rendered for action in object_actions(here, wanted)]


def _is_in_use(here: ReconcileContext, config: PodConfig) -> bool:
    """Whether a pod mounts this very configuration, or the next one will."""
    is_mounted = any(pod.config_digest == config.digest for pod in here.observed.pods)
    return is_mounted or any(_mounts(here, role.role, config) for role in here.wanted)


def _is_stuck(here: ReconcileContext) -> bool:
    return any(
        pod.waiting_reason == "ContainerCreating"
        and (here.now - pod.created).total_seconds() > _STUCK_SECONDS
        for pod in here.observed.pods
    )


def _unwanted_sets(here: ReconcileContext) -> Iterable[Action]:
    keep = {workload_name(here.job.name, role.role) for role in here.wanted}
    known = {workload_name(here.job.name, role.role) for role in here.roles}
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
    if not all(_mounts(here, role.role, config) for role in here.wanted):
        return
    used = {pod.config_digest for pod in here.observed.pods} | {config.digest}
    for (kind, name), child in here.observed.children.items():
        if kind == "ConfigMap" and not child.is_deleting:
            theirs = annotations(child.manifest).get(ANNOTATION_CONFIG_DIGEST)
            if theirs is not None and theirs not in used:
                yield Delete(kind, name, child.uid)


def _mounts(here: ReconcileContext, role: RoleName, config: PodConfig) -> bool:
    child = _set_of(here, role)
    return child is not None and _config_of(child) == config.digest


def _outdated_controller(here: ReconcileContext) -> Iterable[Action]:
    """A controller that runs another configuration than its StatefulSet says.

    Told to end it commits behind its step, and the next one reads the new configuration; the
    ranks of all roles go on.
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
    return str(annotations(template).get(ANNOTATION_CONFIG_DIGEST, ""))
