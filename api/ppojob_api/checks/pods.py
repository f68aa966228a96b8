"""What a job may ask of its pods: an author of jobs need not be one who may make pods.

The operator would try for ever to have a pod made that an API server refuses, so a job that asks
for one is refused too. Those rules are from k8s.io/kubernetes/pkg/apis/core/validation.
"""

from collections.abc import Iterator
from pathlib import PurePosixPath

from ppojob_api import topology
from ppojob_api.checks import Check
from ppojob_api.pod_overrides import refusals
from ppojob_api.problem import Problem, ReasonCode, shown
from ppojob_api.rules.pods import BARE_RESOURCES
from ppojob_api.v1alpha1.job import PPOJob
from ppojob_api.v1alpha1.kubernetes_names import is_device
from ppojob_api.v1alpha1.pod_settings import PodSettings, PodVolume

_HIDDEN = ("/ppojob", "/dev", "/proc", "/sys", "/tmp", "/opt/ppojob", "/var/run/secrets")
"""What a volume may not hide: mounts of ours, those of the container, and the image's program."""

_POD_SETS = 8
"""A Workload of Kueue has at most so many."""

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


def pod_sets(job: PPOJob) -> Iterator[Problem]:
    """More roles in pods of their own than Kueue takes."""
    roles = topology.build(job.metadata.name, job.spec).with_own_pods
    if job.spec.scheduling.type == "kueue" and len(roles) > _POD_SETS:
        why = f"{len(roles)} roles have pods of their own, and Kueue takes {_POD_SETS} at most"
        allowed = "colocateWith: actorRollout for one of them, or another type"
        yield Problem("spec.scheduling.type", shown("kueue"), why, allowed, ReasonCode.CONFLICT)


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
    """A volume has a place of its own, and lies beside ours."""
    for where, settings in all_settings(job):
        folders = [volume.folder for volume in settings.volumes]
        for index, volume in enumerate(settings.volumes):
            if not _is_free(volume):
                place, got = f"{where}.volumes[{index}].mountPath", shown(volume.mount_path)
                why = "it would hide what the container needs there"
                allowed = f"another path than {', '.join(_HIDDEN)} and those within and above them"
                yield Problem(place, got, why, allowed, ReasonCode.BAD_FORM)
            first = folders.index(volume.folder)
            if first < index:
                place, got = f"{where}.volumes[{index}].mountPath", shown(volume.mount_path)
                why = f"{where}.volumes[{first}] has it already"
                yield Problem(place, got, why, "each once", ReasonCode.DUPLICATE)


def resources(job: PPOJob) -> Iterator[Problem]:
    """Parts of devices, and a size that no process could start with: a number alone is bytes."""
    for where, settings in all_settings(job):
        for name, number in sorted(settings.resources.items()):
            place = f"{where}.resources[{shown(name)}]"
            if is_device(name) and number.endswith("m"):
                why, allowed = "a device is given as a whole", "a whole number"
            elif name == BARE_RESOURCES[1] and number[-1] in "0123456789mk":
                why = "that many bytes, or thousands of them, hold no process"
                allowed = "at least 1Mi, such as 16Gi"
            else:
                continue
            yield Problem(place, shown(number), why, allowed, ReasonCode.OUT_OF_RANGE)


def _is_free(volume: PodVolume) -> bool:
    folder = PurePosixPath(volume.folder)
    taken = (PurePosixPath(path) for path in _HIDDEN)
    is_plain = ".." not in volume.mount_path.split("/")
    return is_plain and not any(
        folder.is_relative_to(path) or path.is_relative_to(folder) for path in taken
    )


_PODS = ("spec.pods",)
_ROLES = tuple(f"spec.{part}" for part in ("roles", "algorithm", "rewards", "rewardModel", "agent"))
POD_CHECKS = (
    Check(without_pods, (*_PODS, *_ROLES)),
    Check(pod_sets, ("spec.scheduling.type", *_ROLES)),
    Check(overrides, (*_PODS, "spec.scheduling.type")),
    Check(volumes, _PODS),
    Check(resources, _PODS),
)
