"""The pods of a role by their names: as they are to be, or as they were accepted. Pure."""

from dataclasses import dataclass
from typing import cast

from ppojob_api.topology import Topology
from ppojob_api.well_known import ROLE_SLUGS, RoleName, pod_name
from ppojob_operator.state import Job


@dataclass(frozen=True, slots=True)
class RolePods:
    """A role with pods of its own.

    Attributes:
        pods: names of its pods, by ordinal.
    """

    role: RoleName
    pods: tuple[str, ...]


def wanted_role_pods(topology: Topology) -> tuple[RolePods, ...]:
    """The roles that a job is to have."""
    return tuple(
        RolePods(role.role, tuple(pod.name for pod in role.pods)) for role in topology.with_own_pods
    )


def accepted_role_pods(job: Job) -> tuple[RolePods, ...]:
    """The roles that a job had when its spec was accepted last: the status has kept them."""
    found = ((cast("RoleName", one.name), one.replicas) for one in job.status.roles)
    return tuple(
        RolePods(role, tuple(pod_name(job.name, role, index) for index in range(replicas)))
        for role, replicas in found
        if role in ROLE_SLUGS
    )
