"""What every rank that holds models begins with: threads, seeds, its world, its channels."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from ppojob_api import contract
from ppojob_api.topology import RoleTopology, model_pods, world_size
from ppojob_trainer.models.architectures import Sizes, read_sizes
from ppojob_trainer.parallel.dims import ParallelDims
from ppojob_trainer.parallel.world import MeetingPoint, World, open_world
from ppojob_trainer.pod_environment import PodEnvironment, RankEnvironment
from ppojob_trainer.rows.group_cost import linear_cost
from ppojob_trainer.workers.batch_rows import GroupCosts
from ppojob_trainer.workers.device_checks import check_device, device_facts
from ppojob_trainer.workers.row_channels import RowChannels

OWNER = "actorRollout"
"""The role whose ranks own the rows: the others meet them in its store."""


@contextmanager
def open_role_world(environment: PodEnvironment, rank: RankEnvironment) -> Iterator[World]:
    """Prepare the process and join the world of its role, which ends with the block.

    Raises:
        ConfigError: the device cannot hold the models, or lacks a type of number.
    """
    config = environment.config
    timeouts = config.spec.timeouts
    role = config.topology.role(environment.role)
    # A rank sees one GPU, its own (`PodPlan.rank_environment`).
    device = torch.device("cuda", 0) if role.device == "cuda" else torch.device("cpu")
    check_device(config, role.role, device_facts(device, role.ranks_per_pod))
    torch.set_num_threads(role.threads_per_rank)
    torch.use_deterministic_algorithms(device.type == "cpu")
    torch.manual_seed(config.spec.seed)
    meets = role.world_size > 1 or (role.role == OWNER and _has_consumers(environment))
    with open_world(
        rank.rank,
        role.world_size,
        device,
        dims=role_dims(environment, role.role),
        address=environment.address,
        meeting=_meeting(environment, role, rank.epoch) if meets else None,
        open_seconds=timeouts.startup_seconds,
        # Ranks wait for each other in a collective: no longer than the stage that it is part of.
        operation_seconds=max(timeouts.startup_seconds, timeouts.stage_seconds),
    ) as world:
        yield world


def open_channels(environment: PodEnvironment, world: World) -> RowChannels:
    """The channels of a rank, none of them open yet."""
    spec = environment.config.spec
    path = Path(spec.model.path) / "config.json"
    sizes = read_sizes(json.loads(path.read_text()), path)
    assert isinstance(sizes, Sizes), "a model that has been loaded has sizes"
    return RowChannels(
        world=world,
        owns_rows=environment.role == OWNER,
        address=environment.address,
        host=environment.host,
        costs=GroupCosts(linear_cost(sizes), spec.training.share_prompts),
        dims_of=lambda role: role_dims(environment, role),
    )


def role_dims(environment: PodEnvironment, role: str) -> ParallelDims:
    """The layout of a role that has pods of its own; engines are whole models, one a rank."""
    if role == "rollout":
        return ParallelDims(replicate=environment.config.topology.role("rollout").world_size)
    pods = model_pods(environment.config.spec.roles)
    return next(
        ParallelDims.of(own.parallelism, world_size(own))
        for name, own in pods.items()
        if name == role
    )


def _has_consumers(environment: PodEnvironment) -> bool:
    """Whether another role with pods of its own makes the rows, or computes on them."""
    consumers = {"rollout", "reference", "critic"}
    return any(role.role in consumers for role in environment.config.topology.with_own_pods)


def _meeting(environment: PodEnvironment, role: RoleTopology, epoch: int) -> MeetingPoint:
    return MeetingPoint(
        host=environment.host(role.pods[0].host),
        port=contract.PORT_STORE,
        key=f"{environment.config.uid}/{role.role}/{epoch}",
    )
