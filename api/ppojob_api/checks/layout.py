"""Ranks: what they share of a pod's cores and GPUs, and whether a batch has work for each."""

from collections.abc import Iterator

from ppojob_api import topology
from ppojob_api.checks.check import MODEL_ROLE_PATHS, Check, conflict, out_of_range
from ppojob_api.problem import Problem
from ppojob_api.v1alpha1.job import PPOJob, PPOJobSpec
from ppojob_api.well_known import RoleName


def cores(job: PPOJob) -> Iterator[Problem]:
    """Threads that share a core slow each other down many times over."""
    for role, pods in topology.model_pods(job.spec.roles).items():
        ranks, each = topology.ranks_per_replica(pods), topology.threads_per_rank(pods)
        threads = ranks * each
        if pods.cpu is not None and threads > pods.cpu:
            yield conflict(
                f"spec.roles.{role}.cpu",
                pods.cpu,
                f"{ranks} x threadsPerRank {each} = {threads} threads",
                f"at least {threads}, or fewer threadsPerRank",
            )


def ranks_and_gpus(job: PPOJob) -> Iterator[Problem]:
    """On GPUs every rank has one of its own."""
    for role, pods in topology.model_pods(job.spec.roles).items():
        ranks, gpus = pods.ranks_per_replica, pods.gpus_per_replica
        if gpus and ranks not in (None, gpus):
            where = f"spec.roles.{role}.ranksPerReplica"
            why = f"gpusPerReplica is {gpus}, and a GPU holds one rank"
            yield conflict(where, ranks, why, f"{gpus}, or remove it")


def engines(job: PPOJob) -> Iterator[Problem]:
    """Each rank of the policy holds one engine."""
    engines = job.spec.rollout.parallelism.data
    ranks = topology.world_size(job.spec.roles.actor_rollout)
    if engines not in (None, ranks):
        where = "spec.rollout.parallelism.data"
        why = f"each rank of spec.roles.actorRollout holds one engine, and there are {ranks}"
        yield conflict(where, engines, why, f"{ranks}, or remove it")


def prompts_for_all_ranks(job: PPOJob) -> Iterator[Problem]:
    """A group is whole on one rank, so a batch of fewer prompts would leave ranks idle."""
    spec = job.spec
    worlds = {role: topology.world_size(p) for role, p in topology.model_pods(spec.roles).items()}
    for role, ranks in worlds.items():
        for where, prompts in _batches(spec, role, has_critic_pods="critic" in worlds):
            if prompts is not None and prompts < ranks:
                why = f"spec.roles.{role} has {ranks} ranks, and each takes whole prompts"
                yield out_of_range(where, prompts, why, f"at least {ranks}")


def _batches(
    spec: PPOJobSpec, role: RoleName, *, has_critic_pods: bool
) -> Iterator[tuple[str, int | None]]:
    """What is dealt to the ranks in a role's pods: its place in the spec, and how many prompts."""
    algorithm = spec.algorithm
    yield "spec.algorithm.promptsPerStep", algorithm.prompts_per_step
    part = spec.critic.mini_batch_prompts if spec.critic is not None else None
    holds_critic = role == ("critic" if has_critic_pods else "actorRollout")
    if role == "actorRollout" or (holds_critic and part is None):
        yield "spec.algorithm.miniBatchPrompts", algorithm.mini_batch_prompts
    if holds_critic:
        yield "spec.critic.miniBatchPrompts", part


LAYOUT_CHECKS = (
    Check(cores, MODEL_ROLE_PATHS),
    Check(ranks_and_gpus, MODEL_ROLE_PATHS),
    Check(engines, ("spec.roles.actorRollout", "spec.rollout.parallelism")),
    Check(
        prompts_for_all_ranks,
        (
            *MODEL_ROLE_PATHS,
            "spec.algorithm.promptsPerStep",
            "spec.algorithm.miniBatchPrompts",
            "spec.critic.miniBatchPrompts",
        ),
    ),
)
