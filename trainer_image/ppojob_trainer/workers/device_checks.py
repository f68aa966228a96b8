"""Whether a rank's device can do what is asked of it: judged before any model is loaded."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch

from ppojob_api.problem import Problem, ReasonCode, shown
from ppojob_api.run_config import RunConfig
from ppojob_api.well_known import RoleName
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.models.memory import GIB, count_parameters, held_by_rank, in_gib, machine_bytes

_BFLOAT16_SINCE: Final = (8, 0)
"""Compute capability of the first GPUs (Ampere) whose matrix units know bfloat16."""


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What a device is.

    Attributes:
        name: for people.
        total_bytes: of memory for one rank; None where that is not known. What of it is free now
            says nothing of later: a rank that finds too little is started again.
        capability: compute capability of a GPU; None on the CPU, which knows every type.
    """

    name: str
    total_bytes: int | None
    capability: tuple[int, int] | None = None


def device_facts(device: torch.device, ranks_per_pod: int) -> DeviceFacts:
    """Look at the device of this rank.

    Args:
        device: of the rank.
        ranks_per_pod: that share the memory of the pod, where the device is the CPU.
    """
    if device.type == "cuda":
        _, total = torch.cuda.mem_get_info(device)
        name = torch.cuda.get_device_name(device)
        return DeviceFacts(name, total, torch.cuda.get_device_capability(device))
    memory = machine_bytes()
    return DeviceFacts("the pod's memory", None if memory is None else memory // ranks_per_pod)


def check_device(config: RunConfig, role: RoleName, facts: DeviceFacts) -> None:
    """Refuse a device that has too little memory or lacks a type.

    Args:
        config: the run.
        role: whose rank; it has pods of its own.
        facts: of the rank's device.

    Raises:
        ConfigError: with all that is wrong.
    """
    problems = [*_memory(config, role, facts), *_types(config, role, facts)]
    if problems:
        raise ConfigError(map(str, problems))


def _memory(config: RunConfig, role: RoleName, facts: DeviceFacts) -> Iterator[Problem]:
    held = held_by_rank(config, role, count_parameters(config))
    needed = sum(held.values())
    if facts.total_bytes is not None and needed > facts.total_bytes:
        ranks = config.topology.role(role).world_size
        yield Problem(
            f"spec.roles.{role}",
            f"{ranks} ranks",
            f"each holds at least {needed / GIB:.2f} GiB ({in_gib(held)}), and "
            f"{facts.name} has {facts.total_bytes / GIB:.2f} GiB for it",
            "more ranks, larger devices, or a smaller model",
            ReasonCode.OUT_OF_RANGE,
        )


def _types(config: RunConfig, role: RoleName, facts: DeviceFacts) -> Iterator[Problem]:
    if facts.capability is None or facts.capability >= _BFLOAT16_SINCE:
        return
    spec, living = config.spec, config.topology.living_in(role)
    fields: dict[str, tuple[str, str]] = {}
    if living & {"actorRollout", "reference", "critic"}:
        fields["spec.model.dtype"] = (spec.model.dtype, "float32")
        fields["spec.training.autocast"] = (spec.training.autocast, "none")
    if config.topology.generating.role in living:
        fields["spec.rollout.dtype"] = (spec.rollout.dtype, "float32")
    if "rewardModel" in living and spec.reward_model is not None:
        fields["spec.rewardModel.dtype"] = (spec.reward_model.dtype, "float32")
    major, minor = facts.capability
    for where, (value, allowed) in fields.items():
        if value == "bfloat16":
            why = f"{facts.name} has no bfloat16, which begins with compute capability 8.0"
            allowed = f"{allowed}, or a newer GPU than one of {major}.{minor}"
            yield Problem(where, shown(value), why, allowed, ReasonCode.NOT_ONE_OF)
