"""The pods of a job: one truth for the operator, which makes them, and for the local runner.

A pod is described without a place: its environment names mounts and fields, and whoever makes the
pod (a cluster, or a runner on one machine) says where those are. docs/contract.md is the table.
"""

from dataclasses import dataclass

from ppojob_api import contract
from ppojob_api.run_config import RunConfig
from ppojob_api.topology import PodTopology, RoleTopology
from ppojob_api.well_known import RoleName


@dataclass(frozen=True)
class Literal:
    """An environment value that is the same everywhere."""

    value: str


@dataclass(frozen=True)
class InMount:
    """An environment value that is a path below a mount.

    Attributes:
        mount: `config`, `keys`, `run` or `scratch`.
        path: below it; empty for the mount itself.
    """

    mount: str
    path: str = ""


@dataclass(frozen=True)
class PodAddress:
    """An environment value that is the pod's own IP address."""


@dataclass(frozen=True)
class PodOrdinal:
    """An environment value that is the pod's index within its role."""

    index: int


EnvironmentValue = Literal | InMount | PodAddress | PodOrdinal


@dataclass(frozen=True)
class Pod:
    """One pod with its one container; `host` is the name under which other pods reach it."""

    name: str
    host: str
    role: RoleName
    index: int
    argv: tuple[str, ...]
    environment: dict[str, EnvironmentValue]
    gpus: int


CONFIG_FILE = "run.json"
"""Name of the resolved run configuration in the mount `config`."""


def pods(config: RunConfig) -> tuple[Pod, ...]:
    """All pods of a job, the controller's first."""
    return tuple(pod_of(role, pod) for role in config.topology.with_own_pods for pod in role.pods)


def pod_of(role: RoleTopology, pod: PodTopology) -> Pod:
    """One pod of a role."""
    return Pod(
        name=pod.name,
        host=pod.host,
        role=role.role,
        index=pod.index,
        argv=contract.SUPERVISE_COMMAND,
        environment={
            contract.ENV_CONFIG: InMount("config", CONFIG_FILE),
            contract.ENV_ROLE: Literal(role.role),
            contract.ENV_POD_INDEX: PodOrdinal(pod.index),
            contract.ENV_POD_ADDRESS: PodAddress(),
            contract.ENV_KEYS: InMount("keys"),
            contract.ENV_RUN_FOLDER: InMount("run"),
            contract.ENV_SCRATCH: InMount("scratch"),
        },
        gpus=role.gpus_per_pod,
    )
