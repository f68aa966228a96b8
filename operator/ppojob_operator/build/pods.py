"""Pods of a job and their environment, shared by the operator and the local runner.

docs/contract.md has the table of their environment.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from ppojob_api import contract
from ppojob_api.run_config import RunConfig
from ppojob_api.well_known import RoleName

V = TypeVar("V")

CONFIG_FILE = "run.json"
"""Name of the resolved run configuration in the mount `config`."""


@dataclass(frozen=True)
class Pod:
    """One pod with its one container; `host` is the name under which other pods reach it."""

    name: str
    host: str
    role: RoleName
    index: int
    gpus: int


def pods(config: RunConfig) -> tuple[Pod, ...]:
    """All pods of a job, the controller's first."""
    return tuple(
        Pod(pod.name, pod.host, role.role, pod.index, role.gpus_per_pod)
        for role in config.topology.with_own_pods
        for pod in role.pods
    )


def environment(
    role: RoleName, mounts: Mapping[str, str], index: V, address: V, text: Callable[[str], V]
) -> dict[str, V]:
    """Environment variables that tell a pod its identity and its paths.

    Args:
        role: of the pod.
        mounts: paths of the mounts `config`, `keys`, `run` and `scratch`.
        index: value of the pod's index within its role.
        address: value of the pod's IP address.
        text: makes the value of a variable from a text.
    """
    return {
        contract.ENV_CONFIG: text(f"{mounts['config']}/{CONFIG_FILE}"),
        contract.ENV_ROLE: text(role),
        contract.ENV_POD_INDEX: index,
        contract.ENV_POD_ADDRESS: address,
        contract.ENV_KEYS: text(mounts["keys"]),
        contract.ENV_RUN_FOLDER: text(mounts["run"]),
        contract.ENV_SCRATCH: text(mounts["scratch"]),
    }
