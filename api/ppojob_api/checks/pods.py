"""What a job may ask of its pods: an author of jobs need not be one who may make pods."""

from collections.abc import Iterator
from pathlib import PurePosixPath

from ppojob_api import topology
from ppojob_api.checks.check import Check, bad_form, no_effect
from ppojob_api.pod_overrides import refusals
from ppojob_api.problem import Problem, ReasonCode, shown
from ppojob_api.v1alpha1.job import PPOJob
from ppojob_api.v1alpha1.pod_settings import PodSettings, PodVolume

_HIDDEN = ("/ppojob", "/dev", "/proc", "/sys", "/tmp", "/opt/ppojob", "/var/run/secrets")
"""What a volume may not hide: mounts of ours, those of the container, and the image's program."""

_CONTRACT_PREFIX = "PPOJOB_"


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
                yield no_effect(
                    f"{where}.roles[{index}]",
                    role,
                    "on a role without pods of its own",
                    f"roles with pods here are {', '.join(with_pods)}",
                )


def overrides(job: PPOJob) -> Iterator[Problem]:
    """Parts of a pod that are not a job's to say."""
    for where, settings in all_settings(job):
        yield from refusals(settings.pod_overrides, f"{where}.podOverrides")


def volumes(job: PPOJob) -> Iterator[Problem]:
    """A volume has one source, and lies beside ours."""
    for where, settings in all_settings(job):
        for index, volume in enumerate(settings.volumes):
            place = f"{where}.volumes[{index}]"
            sources = (volume.claim_name, volume.config_map, volume.secret)
            number = sum(source is not None for source in sources)
            if number != 1:
                allowed = "exactly one of claimName, configMap and secret"
                yield _sources(place, number, "a volume has one", allowed)
            if not _is_free(volume):
                why = "it would hide what the container needs there"
                allowed = f"another path than {', '.join(_HIDDEN)} and those within and above them"
                yield bad_form(f"{place}.mountPath", volume.mount_path, why, allowed)


def repeated(job: PPOJob) -> Iterator[Problem]:
    """A pod has one place of a name; the second would stand over the first, or be refused."""
    for where, settings in all_settings(job):
        paths = [(one.mount_path, one.folder) for one in settings.volumes]
        names = [(one.name, one.name) for one in settings.env]
        # Over one topology a pod may spread in both ways.
        ways = [
            (one.topology_key, f"{one.topology_key} {one.when_unsatisfiable}")
            for one in settings.topology_spread
        ]
        yield from _repeated(f"{where}.volumes", "mountPath", paths)
        yield from _repeated(f"{where}.env", "name", names)
        yield from _repeated(f"{where}.topologySpread", "topologyKey", ways)


def _repeated(where: str, field: str, given: list[tuple[str, str]]) -> Iterator[Problem]:
    """Items whose key, which stands behind what was given, an earlier one has."""
    keys = [key for _, key in given]
    for index, (text, key) in enumerate(given):
        first = keys.index(key)
        if first < index:
            why = f"{where}[{first}] has it already"
            place = f"{where}[{index}].{field}"
            yield Problem(place, shown(text), why, "each once", ReasonCode.DUPLICATE)


def variables(job: PPOJob) -> Iterator[Problem]:
    """A variable has one source, and is none of the container contract."""
    for where, settings in all_settings(job):
        for index, variable in enumerate(settings.env):
            place = f"{where}.env[{index}]"
            number = sum(one is not None for one in (variable.value, variable.secret))
            if number != 1:
                allowed = "exactly one of value and secret"
                yield _sources(place, number, "a variable has one", allowed)
            if variable.name.startswith(_CONTRACT_PREFIX):
                why = f"names that begin with {_CONTRACT_PREFIX} are the container contract's"
                got, allowed = shown(variable.name), "a name of your own"
                yield Problem(f"{place}.name", got, why, allowed, ReasonCode.FORBIDDEN)


def _sources(where: str, number: int, why: str, allowed: str) -> Problem:
    return Problem(where, f"{number} sources", why, allowed, ReasonCode.CONFLICT)


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
    Check(overrides, _PODS),
    Check(volumes, _PODS),
    Check(repeated, _PODS),
    Check(variables, _PODS),
)
