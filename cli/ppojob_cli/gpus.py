"""GPUs of this machine, and their assignment to the pods of a job."""

from collections.abc import Iterable, Mapping
from itertools import islice, takewhile
from pathlib import Path
from typing import Final

from ppojob_api import contract
from ppojob_api.topology import RoleTopology

DEVICES: Final = Path("/dev")


def visible_gpus(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the GPUs that CUDA makes visible in this environment, as named by the variable.

    As for CUDA, the list ends at the first entry that is not a GPU of this machine.
    """
    count = sum(path.name[6:].isdecimal() for path in DEVICES.glob("nvidia*"))
    listed = environment.get(contract.ENV_VISIBLE_GPUS)
    if listed is None or count == 0:
        return tuple(map(str, range(count)))
    entries = dict.fromkeys(entry.strip() for entry in listed.split(","))

    def exists(entry: str) -> bool:
        return int(entry) < count if entry.isdecimal() else entry.startswith(("GPU-", "MIG-"))

    return tuple(takewhile(exists, entries))


def devices(roles: Iterable[RoleTopology], visible: Iterable[str]) -> dict[str, str]:
    """Assign separate GPUs to the pods of roles; return the value of the variable by pod.

    A pod keeps its GPUs as long as it runs: the ranks of every attempt inherit them. `visible` must
    have at least as many as the pods need.
    """
    free = iter(visible)
    return {
        pod.name: ",".join(islice(free, role.gpus_per_pod)) for role in roles for pod in role.pods
    }
