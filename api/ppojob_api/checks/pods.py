"""Rules of pod settings: their author may have no permission to create pods.

The StatefulSet controller would retry forever to create a pod that the API server refuses, so such
a job is refused. Those rules are from k8s.io/kubernetes/pkg/apis/core/validation.
"""

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Final

from ppojob_api import topology
from ppojob_api.problem import Problem, ReasonCode, shown
from ppojob_api.v1alpha1.job import PPOJob
from ppojob_api.v1alpha1.pod_settings import PodSettings, PodVolume
from ppojob_api.v1alpha1.section import (
    LABEL_KEY_WORDS,
    LABEL_VALUE_WORDS,
    is_label_key,
    is_label_value,
)
from ppojob_api.well_known import RESERVED_PREFIX

_HIDDEN = ("/ppojob", "/dev", "/proc", "/sys", "/tmp", "/opt/ppojob", "/var/run/secrets")
"""Paths that a volume must not hide: our mounts, those of the container, and the program."""

OVERRIDABLE: Final[Mapping[str, type]] = {
    "metadata.annotations": dict,
    "metadata.labels": dict,
    "spec.dnsConfig": dict,
    "spec.hostAliases": list,
    "spec.preemptionPolicy": str,
    "spec.readinessGates": list,
    "spec.schedulerName": str,
    "spec.schedulingGates": list,
}
"""Paths in a pod template that a job may override, and their types; the operator merges maps by key
and replaces other values.

Authors of jobs may have no permission to create pods, so these paths give no access to the node, to
another identity or to a weaker sandbox. Settings with a field of their own are not listed, nor are
resource claims, which no field gives to the container.
"""

_KINDS: Final[Mapping[type, str]] = {dict: "an object", list: "a list", str: "text"}


def all_settings(job: PPOJob) -> Iterator[tuple[str, PodSettings]]:
    """The items of `spec.pods`, each with its path."""
    for index, settings in enumerate(job.spec.pods):
        yield f"spec.pods[{index}]", settings


def without_pods(job: PPOJob) -> Iterator[Problem]:
    """Settings of roles without pods.

    A job that does not train may keep the settings of the same job with training.
    """
    steps = job.spec.steps.model_copy(update={"validate_only": False, "generate_only": False})
    built = topology.build(job.metadata.name, job.spec.model_copy(update={"steps": steps}))
    with_pods = [role.role for role in built.with_own_pods]
    for where, settings in all_settings(job):
        for index, role in enumerate(settings.roles):
            if role not in with_pods:
                place, why = f"{where}.roles[{index}]", "the role has no pods of its own"
                allowed = f"roles with pods here are {', '.join(with_pods)}"
                yield Problem(place, shown(role), why, allowed, ReasonCode.NO_EFFECT)


def overrides(job: PPOJob) -> Iterator[Problem]:
    """Fields of a pod that a job may not override."""
    scheduler = job.spec.scheduling.scheduler_name
    for where, settings in all_settings(job):
        yield from _override_problems(settings.pod_overrides, f"{where}.podOverrides")
        spec = settings.pod_overrides.get("spec")
        name = spec.get("schedulerName") if isinstance(spec, dict) else None
        if scheduler and name not in (None, scheduler):
            place, kind = f"{where}.podOverrides.spec.schedulerName", job.spec.scheduling.type
            why = f"with spec.scheduling.type: {kind} the pods are those of {scheduler}"
            allowed = "remove it, or spec.scheduling.type: none"
            yield Problem(place, shown(name), why, allowed, ReasonCode.CONFLICT)


def _override_problems(overrides: Mapping[str, object], where: str) -> Iterator[Problem]:
    """Problems of a partial pod template, the value of `podOverrides`."""
    for part, content in overrides.items():
        inside: Mapping[str, object] = {part: content}
        if part in {"metadata", "spec"} and isinstance(content, dict):
            inside = {f"{part}.{name}": value for name, value in content.items()}
        for path, value in inside.items():
            kind = OVERRIDABLE.get(path)
            if kind is None:
                why = "a job may not override this part of a pod"
                allowed, code = f"one of {', '.join(OVERRIDABLE)}", ReasonCode.FORBIDDEN
                yield Problem(f"{where}.{path}", shown(value), why, allowed, code)
            elif not isinstance(value, kind):
                yield _wrong_type(f"{where}.{path}", value, kind)
            elif part == "metadata" and isinstance(value, dict):
                yield from _map_problems(value, path.partition(".")[2], f"{where}.{path}")


def _map_problems(items: Mapping[str, object], kind: str, where: str) -> Iterator[Problem]:
    """Invalid or reserved labels and annotations."""
    for key, value in items.items():
        place = f"{where}[{shown(key)}]"
        if not is_label_key(key):
            got, why = shown(key), f"it is not the name of one of the {kind}"
            yield Problem(where, got, why, LABEL_KEY_WORDS, ReasonCode.BAD_FORM)
        elif key.startswith(RESERVED_PREFIX):
            why = f"keys that begin with {RESERVED_PREFIX} belong to the operator"
            yield Problem(where, shown(key), why, "a prefix of your own", ReasonCode.FORBIDDEN)
        elif not isinstance(value, str):
            yield _wrong_type(place, value, str)
        elif kind == "labels" and not is_label_value(value):
            why = "it is not the value of a label"
            yield Problem(place, shown(value), why, LABEL_VALUE_WORDS, ReasonCode.BAD_FORM)


def _wrong_type(where: str, value: object, kind: type) -> Problem:
    words = _KINDS[kind]
    return Problem(where, shown(value), f"it is not {words}", words, ReasonCode.WRONG_TYPE)


def volumes(job: PPOJob) -> Iterator[Problem]:
    """Volumes need different mount paths, outside of ours."""
    for where, settings in all_settings(job):
        folders = [volume.folder for volume in settings.volumes]
        for index, volume in enumerate(settings.volumes):
            if not _is_free(volume):
                place, got = f"{where}.volumes[{index}].mountPath", shown(volume.mount_path)
                why = "it would hide files that the container needs"
                allowed = f"another path than {', '.join(_HIDDEN)} and those within and above them"
                yield Problem(place, got, why, allowed, ReasonCode.BAD_FORM)
            first = folders.index(volume.folder)
            if first < index:
                place, got = f"{where}.volumes[{index}].mountPath", shown(volume.mount_path)
                why = f"{where}.volumes[{first}] has it already"
                yield Problem(place, got, why, "each once", ReasonCode.DUPLICATE)


def resources(job: PPOJob) -> Iterator[Problem]:
    """Storage too small for a process: a plain number is bytes."""
    for where, settings in all_settings(job):
        number = settings.resources.get("ephemeral-storage", "1Gi")
        if number[-1] in "0123456789mk":
            place, why = f'{where}.resources["ephemeral-storage"]', "it is too small for a process"
            allowed = "at least 1Mi, such as 16Gi"
            yield Problem(place, shown(number), why, allowed, ReasonCode.OUT_OF_RANGE)


def _is_free(volume: PodVolume) -> bool:
    folder = PurePosixPath(volume.folder)
    taken = (PurePosixPath(path) for path in _HIDDEN)
    is_plain = ".." not in volume.mount_path.split("/")
    return is_plain and not any(
        folder.is_relative_to(path) or path.is_relative_to(folder) for path in taken
    )
