"""What the resource has a place for and this version cannot do yet.

When a capability arrives, its rule here goes.
"""

from collections.abc import Iterator
from typing import get_args

from ppojob_api import topology
from ppojob_api.checks.check import Check, not_yet
from ppojob_api.problem import Problem
from ppojob_api.v1alpha1.algorithm import AlgorithmType
from ppojob_api.v1alpha1.job import PPOJob

UNSUPPORTED_TYPES = frozenset({"ppo"})
SUPPORTED_TYPES = tuple(t for t in get_args(AlgorithmType) if t not in UNSUPPORTED_TYPES)


def algorithm_type(job: PPOJob) -> Iterator[Problem]:
    """PPO needs a critic."""
    kind = job.spec.algorithm.type
    if kind in UNSUPPORTED_TYPES:
        allowed = f"one of {', '.join(SUPPORTED_TYPES)}"
        yield not_yet("spec.algorithm.type", kind, "training with a critic", allowed)


def rollout_pods(job: PPOJob) -> Iterator[Problem]:
    """Generation happens where training does."""
    role = job.spec.roles.rollout
    if role is not None:
        value = role.model_dump(mode="json", exclude_unset=True)
        what = "pods of its own for generation"
        yield not_yet("spec.roles.rollout", value, what, "null: generate in actorRollout's pods")


def reference_pods(job: PPOJob) -> Iterator[Problem]:
    """The reference lives beside the policy."""
    reference = job.spec.roles.reference
    if reference is not None and reference.colocate_with is None:
        where = "spec.roles.reference.colocateWith"
        yield not_yet(where, None, "a reference in pods of its own", "actorRollout")


def one_rank(job: PPOJob) -> Iterator[Problem]:
    """The policy has one rank."""
    pods = job.spec.roles.actor_rollout
    where = "spec.roles.actorRollout"
    ranks = topology.ranks_per_replica(pods)
    if pods.replicas > 1:
        yield not_yet(f"{where}.replicas", pods.replicas, "more than one pod of the policy", "1")
    if pods.gpus_per_replica > 1:
        what = "more than one GPU"
        yield not_yet(f"{where}.gpusPerReplica", pods.gpus_per_replica, what, "0 or 1")
    elif ranks > 1 and not pods.gpus_per_replica:
        yield not_yet(f"{where}.ranksPerReplica", ranks, "more than one rank of the policy", "1")


def training_parallelism(job: PPOJob) -> Iterator[Problem]:
    """One rank has nothing to be parallel with."""
    layout = job.spec.roles.actor_rollout.parallelism
    where = "spec.roles.actorRollout.parallelism"
    if layout.tensor > 1:
        yield not_yet(f"{where}.tensor", layout.tensor, "tensor parallel training", "1")
    if layout.data_shard is not None and layout.data_shard > 1:
        yield not_yet(f"{where}.dataShard", layout.data_shard, "sharded training", "1, or null")


def rollout_parallelism(job: PPOJob) -> Iterator[Problem]:
    """One engine on one rank."""
    layout = job.spec.rollout.parallelism
    where = "spec.rollout.parallelism"
    if layout.tensor > 1:
        yield not_yet(f"{where}.tensor", layout.tensor, "tensor parallel generation", "1")
    if layout.data is not None and layout.data > 1:
        yield not_yet(f"{where}.data", layout.data, "more than one rollout engine", "1, or null")


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


def lifecycle(job: PPOJob) -> Iterator[Problem]:
    """What only an operator can do."""
    life, where = job.spec.lifecycle, "spec.lifecycle"
    if life.suspend:
        yield not_yet(f"{where}.suspend", True, "suspending", "false, and Ctrl-C to stop a run")
    limits = (
        ("activeDeadlineSeconds", life.active_deadline_seconds, "a deadline"),
        ("ttlSecondsAfterFinished", life.ttl_seconds_after_finished, "deletion after the end"),
    )
    for name, value, what in limits:
        if value is not None:
            yield not_yet(f"{where}.{name}", value, what, "null")


SUPPORT_CHECKS = (
    Check(remote_code, ("spec.model.trustRemoteCode",)),
    Check(algorithm_type, ("spec.algorithm.type",)),
    Check(rollout_parallelism, ("spec.rollout.parallelism",)),
    Check(reward_config_maps, ("spec.rewards",)),
    Check(one_rank, ("spec.roles.actorRollout",)),
    Check(training_parallelism, ("spec.roles.actorRollout.parallelism",)),
    Check(rollout_pods, ("spec.roles.rollout",)),
    Check(reference_pods, ("spec.roles.reference",)),
    Check(lifecycle, ("spec.lifecycle",)),
)
