"""Startup of every rank that holds models: device, threads, seeds, world, channels."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import torch

from ppojob_api import contract
from ppojob_api.problem import Problem, ReasonCode, shown
from ppojob_api.run_config import RunConfig
from ppojob_api.topology import model_pods, world_size
from ppojob_api.well_known import RoleName
from ppojob_trainer.deterministic import make_deterministic
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.models.architectures import sizes_of
from ppojob_trainer.models.config_changes import check_overrides
from ppojob_trainer.models.layout_checks import check_layouts
from ppojob_trainer.models.memory import (
    GIB,
    count_parameters,
    held_in_turns,
    in_gib,
    machine_bytes,
    smaller_models,
)
from ppojob_trainer.parallel.dims import ParallelDims
from ppojob_trainer.parallel.world import Rendezvous, World, open_world
from ppojob_trainer.pod_environment import PodEnvironment, RankEnvironment
from ppojob_trainer.rows.assignment import linear_cost
from ppojob_trainer.workers.batch_rows import GroupCosts
from ppojob_trainer.workers.row_channels import RowChannels

OWNER = "actorRollout"
"""The role whose ranks own the rows; the others join at its rendezvous store."""

_BFLOAT16_SINCE: Final = (8, 0)
"""Compute capability of the first GPUs (Ampere) with bfloat16 matrix units."""


@contextmanager
def open_role_world(environment: PodEnvironment, rank: RankEnvironment) -> Iterator[World]:
    """Prepare the process and join the world of its role within the block.

    Raises ConfigError if device, data types or layouts do not fit the models.
    """
    config = environment.config
    timeouts = config.spec.timeouts
    problems = [*check_overrides(config.spec.model), *check_layouts(config.spec)]
    if problems:
        raise ConfigError(map(str, problems))
    role = config.topology.role(environment.role)
    # A rank sees one GPU, its own (`PodPlan.rank_environment`).
    device = torch.device("cuda", 0) if role.device == "cuda" else torch.device("cpu")
    check_device(config, role.role, device_facts(device, role.ranks_per_pod))
    torch.set_num_threads(role.threads_per_rank)
    make_deterministic(device)
    torch.manual_seed(config.spec.seed)
    others = {own.role for own in config.topology.with_own_pods}
    is_joined = role.role == OWNER and others & {"rollout", "reference", "critic"}
    rendezvous = None
    if role.world_size > 1 or is_joined:
        rendezvous = Rendezvous(
            environment.host(role.pods[0].host),
            contract.PORT_STORE,
            f"{config.uid}/{role.role}/{rank.attempt}",
        )
    with open_world(
        rank.rank,
        role.world_size,
        device,
        dims=role_dims(environment, role.role),
        engine_ranks=engine_ranks(config, role.role),
        address=environment.address,
        rendezvous=rendezvous,
        open_seconds=timeouts.startup_seconds,
        # Timeout of a collective: the limit of the stage that it is part of.
        operation_seconds=max(timeouts.startup_seconds, timeouts.stage_seconds),
    ) as world:
        yield world


def open_channels(environment: PodEnvironment, world: World) -> RowChannels:
    """Return the channels of a rank; none is open yet."""
    spec = environment.config.spec
    sizes = sizes_of(spec.model.path)
    assert sizes is not None, "the model was loaded"
    return RowChannels(
        world=world,
        owns_rows=environment.role == OWNER,
        address=environment.address,
        host=environment.host,
        costs=GroupCosts(
            linear_cost(sizes),
            spec.training.share_prompts,
            whole_groups=spec.algorithm.whole_groups,
        ),
        dims_of=lambda role: role_dims(environment, role),
    )


def role_dims(environment: PodEnvironment, role: str) -> ParallelDims:
    """Return the layout of a role with pods of its own; an engine's ranks are replicas."""
    if role == "rollout":
        return ParallelDims(replicate=environment.config.topology.role("rollout").world_size)
    pods = model_pods(environment.config.spec.roles)
    return next(
        ParallelDims.of(own.parallelism, world_size(own))
        for name, own in pods.items()
        if name == role
    )


def engine_ranks(config: RunConfig, role: RoleName) -> int:
    """Return how many ranks of a role share a rollout engine."""
    spec = config.spec
    has_engines = config.topology.generating.role == role and spec.rollout.replay is None
    return spec.rollout.parallelism.tensor if has_engines and not spec.algorithm.given else 1


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """Properties of a device."""

    name: str  # in messages
    total_bytes: int | None  # memory for one rank; None if unknown
    capability: tuple[int, int] | None = None  # of a GPU; None on the CPU


def device_facts(device: torch.device, ranks_per_pod: int) -> DeviceFacts:
    """Return the properties of this rank's device; ranks of a pod share the CPU's memory."""
    if device.type == "cuda":
        _, total = torch.cuda.mem_get_info(device)
        name = torch.cuda.get_device_name(device)
        return DeviceFacts(name, total, torch.cuda.get_device_capability(device))
    memory = machine_bytes()
    return DeviceFacts("the pod's memory", None if memory is None else memory // ranks_per_pod)


def check_device(config: RunConfig, role: RoleName, facts: DeviceFacts) -> None:
    """Raise ConfigError if the role's device has too little memory or lacks a data type."""
    problems = [*_memory(config, role, facts), *_types(config, role, facts)]
    if problems:
        raise ConfigError(map(str, problems))


def _memory(config: RunConfig, role: RoleName, facts: DeviceFacts) -> Iterator[Problem]:
    turns = held_in_turns(config, role, count_parameters(config)).values()
    held = max(turns, key=lambda there: sum(there.values()), default={})
    needed = sum(held.values())
    if facts.total_bytes is not None and needed > facts.total_bytes:
        ranks = config.topology.role(role).world_size
        yield Problem(
            f"spec.roles.{role}",
            f"{ranks} ranks",
            f"each holds at least {needed / GIB:.2f} GiB ({in_gib(held)}), and "
            f"{facts.name} has {facts.total_bytes / GIB:.2f} GiB for it",
            f"more ranks, larger devices, {smaller_models(config.spec)}, "
            "or on GPUs roles.*.offload",
            ReasonCode.OUT_OF_RANGE,
        )


def _types(config: RunConfig, role: RoleName, facts: DeviceFacts) -> Iterator[Problem]:
    if facts.capability is None or facts.capability >= _BFLOAT16_SINCE:
        return
    spec, living = config.spec, config.topology.living_in(role)
    fields: dict[str, tuple[str, str]] = {}
    if living & {"actorRollout", "reference", "critic"}:
        fields["spec.model.dtype"] = (spec.model.dtype, "float32")
        fields["spec.training.autocast"] = (spec.training.autocast, "float16 or none")
    if config.topology.generating.role in living and not spec.algorithm.given:
        fields["spec.rollout.dtype"] = (spec.rollout.dtype, "float16 or float32")
    if "rewardModel" in living and spec.reward_model is not None:
        fields["spec.rewardModel.dtype"] = (spec.reward_model.dtype, "float32")
    major, minor = facts.capability
    for where, (value, allowed) in fields.items():
        if value == "bfloat16":
            why = f"{facts.name} has no bfloat16, which begins with compute capability 8.0"
            allowed = f"{allowed}, or a newer GPU than one of {major}.{minor}"
            yield Problem(where, shown(value), why, allowed, ReasonCode.NOT_ONE_OF)
