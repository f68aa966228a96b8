"""The processes of one role, as the controller calls them."""

from collections.abc import Callable
from dataclasses import dataclass

from ppojob_api import contract
from ppojob_api.topology import RoleTopology
from ppojob_trainer.rpc.client import Peer

STATEFUL_ROLES = ("actorRollout", "critic")
ROLES_WITH_ROWS = ("actorRollout", "rollout", "reference", "critic")


@dataclass
class RoleGroup:
    """The processes of one role.

    Attributes:
        name: role.
        supervisors: one a pod.
        ranks: in the order of the role's world.
        is_stateful: whether its loss costs the steps since the last commit.
        has_channels: whether its ranks exchange rows with those of other roles.
        epoch: the epoch that the controller speaks to; 0 before the first.
    """

    name: str
    supervisors: tuple[Peer, ...]
    ranks: tuple[Peer, ...]
    is_stateful: bool
    has_channels: bool
    epoch: int = 0


def role_group(topology: RoleTopology, host: Callable[[str], str]) -> RoleGroup:
    """The group of a role that has pods of its own."""
    supervisors, ranks = [], []
    for pod in topology.pods:
        address = host(pod.host)
        supervisors.append(
            Peer(f"{pod.name} supervisor", address, contract.PORT_SUPERVISOR, topology.role)
        )
        for local_rank, rank in enumerate(topology.ranks_of(pod.index)):
            port = contract.PORT_FIRST_RANK + local_rank
            ranks.append(Peer(f"{topology.role} rank {rank}", address, port, topology.role))
    return RoleGroup(
        name=topology.role,
        supervisors=tuple(supervisors),
        ranks=tuple(ranks),
        is_stateful=topology.role in STATEFUL_ROLES,
        has_channels=topology.role in ROLES_WITH_ROWS,
    )
