"""Pods of a job and the ranks in them: a pure function of the spec.

The operator renders the pods from it, and the pods find each other by it without a look-up.
"""

from typing import Final, Literal

from ppojob_api.v1alpha1.agent import ToolSpec
from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_api.v1alpha1.roles import (
    CodePods,
    CriticRole,
    DevicePods,
    FrozenRole,
    JudgePods,
    RetrieverPods,
    RolePods,
    RolesSpec,
)
from ppojob_api.v1alpha1.section import Items, Section
from ppojob_api.well_known import SEARCH_TOOL, RoleName, pod_host, pod_name

Device = Literal["cpu", "cuda"]

_ROLES_WITHOUT_MODEL: Final[frozenset[RoleName]] = frozenset(
    {"controller", "reward", "tools", "retriever", "judge"}
)


class PodTopology(Section):
    """One pod of a role."""

    name: str  # `<job>-<role>-<index>`
    host: str  # `<job>-<role>-<index>.<job>-<role>`, resolved inside the job's namespace
    index: int  # ordinal of the pod


class RoleTopology(Section):
    """The pods and ranks of one role."""

    role: RoleName  # name as in the spec
    device: Device  # where its tensors live
    pods: Items[PodTopology]  # by ordinal; those of `colocatedWith` where that is given
    ranks_per_pod: int  # processes in each pod
    threads_per_rank: int  # threads of each process
    gpus_per_pod: int  # GPUs of each pod
    # The role whose pods this one lives in; none: pods of its own.
    colocated_with: RoleName | None = None

    @property
    def world_size(self) -> int:
        """Ranks of the role."""
        return len(self.pods) * self.ranks_per_pod

    @property
    def holds_models(self) -> bool:
        """Whether its ranks compute with a model; that of the judge is another process's."""
        return self.role not in _ROLES_WITHOUT_MODEL

    def ranks_of(self, pod_index: int) -> range:
        """The ranks in one pod, by local rank; pods have consecutive ranks."""
        first = pod_index * self.ranks_per_pod
        return range(first, first + self.ranks_per_pod)


class Topology(Section):
    """All roles of a job, the controller first."""

    roles: Items[RoleTopology]  # roles that this job has, in the order of the spec

    def role(self, name: RoleName) -> RoleTopology:
        """One role by name.

        Raises:
            KeyError: The job has no such role.
        """
        for role in self.roles:
            if role.role == name:
                return role
        raise KeyError(name)

    def living_in(self, name: str) -> frozenset[RoleName]:
        """The roles whose ranks are those of a role with pods of its own, that role among them."""
        return frozenset(
            role.role for role in self.roles if (role.colocated_with or role.role) == name
        )

    @property
    def generating(self) -> RoleTopology:
        """The role whose ranks hold the engines."""
        standalone = (role for role in self.roles if role.role == "rollout")
        return next(standalone, None) or self.role("actorRollout")

    @property
    def with_own_pods(self) -> tuple[RoleTopology, ...]:
        """Roles that get a StatefulSet."""
        return tuple(role for role in self.roles if role.colocated_with is None)

    @property
    def total_gpus(self) -> int:
        """GPUs of the whole job."""
        return sum(role.gpus_per_pod * len(role.pods) for role in self.with_own_pods)

    @property
    def num_devices(self) -> int:
        """What computes with a model: the job's GPUs, or where it has none its models' ranks."""
        models = (role for role in self.with_own_pods if role.holds_models)
        return self.total_gpus or sum(role.world_size for role in models)


def ranks_per_replica(pods: DevicePods) -> int:
    """Processes of a pod: as given, else one a GPU, else 1."""
    return pods.ranks_per_replica or pods.gpus_per_replica or 1


def world_size(pods: DevicePods) -> int:
    """Ranks of a role in pods of its own."""
    return pods.replicas * ranks_per_replica(pods)


def threads_per_rank(pods: DevicePods) -> int:
    """Threads of a process: as given, else its share of the pod's cores, else 1."""
    if pods.threads_per_rank is not None:
        return pods.threads_per_rank
    return max(1, (pods.cpu or 1) // ranks_per_replica(pods))


def colocatable_roles(roles: RolesSpec) -> dict[RoleName, FrozenRole | CriticRole]:
    """The roles of a spec that may live in the ranks of another, by name."""
    every: dict[RoleName, FrozenRole | CriticRole | None] = {
        "reference": roles.reference,
        "critic": roles.critic,
        "rewardModel": roles.reward_model,
    }
    return {name: role for name, role in every.items() if role is not None}


def model_pods(roles: RolesSpec) -> dict[RoleName, RolePods]:
    """The roles of a spec that shard a model over pods of their own, by name."""
    pods: dict[RoleName, RolePods] = {"actorRollout": roles.actor_rollout}
    hosted = colocatable_roles(roles).items()
    return pods | {name: role for name, role in hosted if role.colocate_with == "none"}


def retrieved_tools(spec: PPOJobSpec) -> tuple[ToolSpec, ...]:
    """The tools that the role `retriever` answers."""
    if spec.agent is None or spec.agent.retriever is None:
        return ()
    return tuple(t for t in spec.agent.tools if t.name == SEARCH_TOOL and t.source is None)


def calls_tools(spec: PPOJobSpec) -> bool:
    """Whether the role `tools` has something to do: other tools, or users to speak for."""
    if spec.agent is None:
        return False
    retrieved = retrieved_tools(spec)
    return bool(spec.agent.interactions) or any(t not in retrieved for t in spec.agent.tools)


def build(job_name: str, spec: PPOJobSpec) -> Topology:
    """The topology of a valid spec."""
    roles, settings = [_without_model(job_name, "controller", CodePods())], spec.roles
    actor = _with_model(job_name, "actorRollout", settings.actor_rollout)
    roles.append(actor)
    # Replayed rows have responses and scores; given answers are not scored.
    is_given = spec.rollout.replay is not None or spec.algorithm.given is not None
    if settings.rollout is not None and not is_given:
        roles.append(_with_model(job_name, "rollout", settings.rollout))
    is_scored = spec.is_scored and not (is_given or spec.steps.generate_only)
    for name, role in colocatable_roles(settings).items():
        if not (is_scored if name == "rewardModel" else spec.steps.trains):
            continue
        if role.colocate_with == "none":
            roles.append(_with_model(job_name, name, role))
        else:
            update = {"role": name, "colocated_with": role.colocate_with}
            roles.append(actor.model_copy(update=update))
    # With a reward model alone there are no reward functions.
    has_functions = is_scored and (spec.rewards or spec.reward_model is None)
    others: tuple[tuple[RoleName, CodePods | RetrieverPods | JudgePods, object], ...] = (
        ("reward", settings.reward, has_functions),
        ("tools", settings.tools, calls_tools(spec)),
        ("retriever", settings.retriever, retrieved_tools(spec)),
        ("judge", settings.judge, has_functions and spec.judge is not None),
    )
    for name, pods, is_needed in others:
        if is_needed and not is_given:
            roles.append(_without_model(job_name, name, pods))
    return Topology(roles=tuple(roles))


def _pods(job_name: str, role: RoleName, replicas: int) -> tuple[PodTopology, ...]:
    return tuple(
        PodTopology(name=pod_name(job_name, role, i), host=pod_host(job_name, role, i), index=i)
        for i in range(replicas)
    )


def _with_model(job_name: str, role: RoleName, pods: DevicePods) -> RoleTopology:
    return RoleTopology(
        role=role,
        device="cuda" if pods.gpus_per_replica else "cpu",
        pods=_pods(job_name, role, pods.replicas),
        ranks_per_pod=ranks_per_replica(pods),
        threads_per_rank=threads_per_rank(pods),
        gpus_per_pod=pods.gpus_per_replica,
    )


def _without_model(
    job_name: str, role: RoleName, pods: CodePods | RetrieverPods | JudgePods
) -> RoleTopology:
    """One rank a pod, with all the pod's cores and GPUs."""
    gpus = pods.gpus_per_replica if isinstance(pods, JudgePods) else 0
    one = DevicePods(
        replicas=pods.replicas, gpus_per_replica=gpus, ranks_per_replica=1, cpu=pods.cpu
    )
    return _with_model(job_name, role, one)
