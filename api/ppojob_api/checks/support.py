"""What the resource has a place for and this version cannot do yet.

When a capability arrives, its rule here goes.
"""

from collections.abc import Iterator

from ppojob_api import topology
from ppojob_api.checks.check import MODEL_ROLE_PATHS, Check, not_yet
from ppojob_api.problem import Problem
from ppojob_api.v1alpha1.job import PPOJob


def rollout_pods(job: PPOJob) -> Iterator[Problem]:
    """Generation happens where training does."""
    role = job.spec.roles.rollout
    if role is not None:
        value = role.model_dump(mode="json", exclude_unset=True)
        what = "pods of its own for generation"
        yield not_yet("spec.roles.rollout", value, what, "remove it: actorRollout's pods generate")


def training_parallelism(job: PPOJob) -> Iterator[Problem]:
    """A model is sharded over all ranks of its role."""
    for role, pods in topology.model_pods(job.spec.roles).items():
        layout, ranks = pods.parallelism, topology.world_size(pods)
        where = f"spec.roles.{role}.parallelism"
        if layout.tensor > 1:
            yield not_yet(f"{where}.tensor", layout.tensor, "tensor parallel training", "1")
        elif layout.data_shard not in (None, ranks):
            per_pod = topology.ranks_per_replica(pods)
            what = f"other shards than replicas {pods.replicas} x {per_pod} ranks = {ranks}"
            yield not_yet(f"{where}.dataShard", layout.data_shard, what, f"{ranks}, or remove it")


def rollout_parallelism(job: PPOJob) -> Iterator[Problem]:
    """An engine lives on one rank."""
    tensor = job.spec.rollout.parallelism.tensor
    if tensor > 1:
        where = "spec.rollout.parallelism.tensor"
        yield not_yet(where, tensor, "tensor parallel generation", "1")


def reward_config_maps(job: PPOJob) -> Iterator[Problem]:
    """Reward code comes from files."""
    for index, reward in enumerate(job.spec.rewards):
        if reward.source is not None and reward.source.config_map is not None:
            where = f"spec.rewards[{index}].source.configMap"
            what = "code from a ConfigMap"
            yield not_yet(where, reward.source.config_map.name, what, "source: {path: FILE}")


def remote_code(job: PPOJob) -> Iterator[Problem]:
    """Code that lies beside a model is not run."""
    if job.spec.model.trust_remote_code:
        where = "spec.model.trustRemoteCode"
        yield not_yet(where, True, "code that comes with a model", "false")


SUPPORT_CHECKS = (
    Check(remote_code, ("spec.model.trustRemoteCode",)),
    Check(rollout_parallelism, ("spec.rollout.parallelism",)),
    Check(reward_config_maps, ("spec.rewards",)),
    Check(training_parallelism, MODEL_ROLE_PATHS),
    Check(rollout_pods, ("spec.roles.rollout",)),
)
