"""What a job may ask of its pods: an author of jobs need not be one who may make pods.

The operator would try for ever to have a pod made that an API server refuses, so a job that asks
for one is refused too. Those rules are from k8s.io/kubernetes/pkg/apis/core/validation.
"""

from collections.abc import Iterator
from pathlib import PurePosixPath

from ppojob_api import topology
from ppojob_api.checks.check import Check
from ppojob_api.pod_overrides import refusals
from ppojob_api.problem import Problem, ReasonCode, repeated, shown
from ppojob_api.rules.pods import BARE_RESOURCES
from ppojob_api.v1alpha1.job import PPOJob
from ppojob_api.v1alpha1.kubernetes_names import is_device
from ppojob_api.v1alpha1.pod_settings import PodSettings, PodVolume

_HIDDEN = ("/ppojob", "/dev", "/proc", "/sys", "/tmp", "/opt/ppojob", "/var/run/secrets")
"""What a volume may not hide: mounts of ours, those of the container, and the image's program."""

_STORAGE = BARE_RESOURCES[1]
_CONTRACT_PREFIX = "PPOJOB_"
_SCHEDULERS = {"volcano": "volcano", "workload": "default-scheduler"}


def all_settings(job: PPOJob) -> Iterator[tuple[str, PodSettings]]:
    """The items of `spec.pods`, each with its path."""
    for index, settings in enumerate(job.spec.pods):
        yield f"spec.pods[{index}]", settings


def without_pods(job: PPOJob) -> Iterator[Problem]:
    """Settings of pods that there are none of."""
    built = topology.build(job.metadata.name, job.spec)
    with_pods = [role.role for role in built.with_own_pods]
    for where, settings in all_settings(job):
        for index, role in enumerate(settings.roles):
            if role not in with_pods:
                place, why = f"{where}.roles[{index}]", "the role has no pods of its own"
                allowed = f"roles with pods here are {', '.join(with_pods)}"
                yield Problem(place, shown(role), why, allowed, ReasonCode.NO_EFFECT)


def overrides(job: PPOJob) -> Iterator[Problem]:
    """Parts of a pod that are not a job's to say."""
    scheduler = _SCHEDULERS.get(job.spec.scheduling.type)
    for where, settings in all_settings(job):
        yield from refusals(settings.pod_overrides, f"{where}.podOverrides")
        spec = settings.pod_overrides.get("spec")
        name = spec.get("schedulerName") if isinstance(spec, dict) else None
        if scheduler and name not in (None, scheduler):
            place, kind = f"{where}.podOverrides.spec.schedulerName", job.spec.scheduling.type
            why = f"with spec.scheduling.type: {kind} the pods are those of {scheduler}"
            allowed = "remove it, or spec.scheduling.type: none"
            yield Problem(place, shown(name), why, allowed, ReasonCode.CONFLICT)


def volumes(job: PPOJob) -> Iterator[Problem]:
    """A volume has one source and a place of its own, and lies beside ours."""
    for where, settings in all_settings(job):
        for index, volume in enumerate(settings.volumes):
            place = f"{where}.volumes[{index}]"
            sources = (volume.claim_name, volume.config_map, volume.secret)
            allowed = "exactly one of claimName, configMap and secret"
            yield from _sources(place, sources, "a volume has one", allowed)
            if not _is_free(volume):
                got, why = shown(volume.mount_path), "it would hide what the container needs there"
                allowed = f"another path than {', '.join(_HIDDEN)} and those within and above them"
                yield Problem(f"{place}.mountPath", got, why, allowed, ReasonCode.BAD_FORM)
        paths = [one.mount_path for one in settings.volumes]
        folders = [one.folder for one in settings.volumes]
        yield from repeated(f"{where}.volumes", "mountPath", paths, folders)


def variables(job: PPOJob) -> Iterator[Problem]:
    """A variable has one source and one name, and is none of the container contract."""
    for where, settings in all_settings(job):
        for index, variable in enumerate(settings.env):
            place = f"{where}.env[{index}]"
            allowed = "exactly one of value and secret"
            sources = (variable.value, variable.secret)
            yield from _sources(place, sources, "a variable has one", allowed)
            if variable.name.startswith(_CONTRACT_PREFIX):
                why = f"names that begin with {_CONTRACT_PREFIX} are the container contract's"
                got, allowed = shown(variable.name), "a name of your own"
                yield Problem(f"{place}.name", got, why, allowed, ReasonCode.FORBIDDEN)
        names = [one.name for one in settings.env]
        yield from repeated(f"{where}.env", "name", names, names)


def spreads(job: PPOJob) -> Iterator[Problem]:
    """Over one topology a pod may spread in both ways, and in each once."""
    for where, settings in all_settings(job):
        keys = [one.topology_key for one in settings.topology_spread]
        ways = [(one.topology_key, one.when_unsatisfiable) for one in settings.topology_spread]
        yield from repeated(f"{where}.topologySpread", "topologyKey", keys, ways)


def resources(job: PPOJob) -> Iterator[Problem]:
    """Parts of devices, and sizes that no process could start with: a number alone is bytes."""
    for where, settings in all_settings(job):
        gpu = settings.gpu_resource
        if gpu is not None and not is_device(gpu):
            allowed = "DOMAIN/NAME, such as nvidia.com/gpu"
            place = f"{where}.gpuResource"
            yield Problem(place, shown(gpu), "it is no device", allowed, ReasonCode.BAD_FORM)
        for name, number in settings.resources.items():
            if is_device(name) and number.endswith("m"):
                place, why = f"{where}.resources[{shown(name)}]", "a device is given as a whole"
                code = ReasonCode.OUT_OF_RANGE
                yield Problem(place, shown(number), why, "a whole number", code)
        sizes = {
            "memory": settings.memory,
            "sharedMemory": settings.shared_memory,
            f"resources[{shown(_STORAGE)}]": settings.resources.get(_STORAGE),
        }
        for name, size in sizes.items():
            if size is not None and size[-1] in "0123456789mk":
                why = "that many bytes, or thousands of them, hold no process"
                allowed = f"at least 1Mi, such as {size.rstrip('mk')}Gi"
                place, code = f"{where}.{name}", ReasonCode.OUT_OF_RANGE
                yield Problem(place, shown(size), why, allowed, code)


def _sources(where: str, sources: tuple[object, ...], why: str, allowed: str) -> Iterator[Problem]:
    number = sum(source is not None for source in sources)
    if number != 1:
        yield Problem(where, f"{number} sources", why, allowed, ReasonCode.CONFLICT)


def _is_free(volume: PodVolume) -> bool:
    folder = PurePosixPath(volume.folder)
    taken = (PurePosixPath(path) for path in _HIDDEN)
    is_plain = ".." not in volume.mount_path.split("/")
    return is_plain and not any(
        folder.is_relative_to(path) or path.is_relative_to(folder) for path in taken
    )


_PODS = ("spec.pods",)
POD_CHECKS = (
    Check(
        without_pods, (*_PODS, "spec.roles", "spec.algorithm", "spec.rewards", "spec.rewardModel")
    ),
    Check(overrides, (*_PODS, "spec.scheduling.type")),
    Check(volumes, _PODS),
    Check(variables, _PODS),
    Check(spreads, _PODS),
    Check(resources, _PODS),
)
