"""Environment of a pod, shared by the operator and the local runner.

docs/contract.md has the table of its variables.
"""

from collections.abc import Callable, Mapping
from typing import TypeVar

from ppojob_api import contract
from ppojob_api.well_known import RoleName

V = TypeVar("V")

CONFIG_FILE = "run.json"
"""Name of the resolved run configuration in the mount `config`."""


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
