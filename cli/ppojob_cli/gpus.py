"""GPUs of this machine: which a job may use, and their assignment to its pods."""

from collections.abc import Iterable, Mapping
from itertools import islice, takewhile
from pathlib import Path
from typing import Final

from ppojob_api import contract
from ppojob_operator.build.pods import Pod

DEVICES: Final = Path("/dev")


def visible_gpus(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The GPUs that CUDA shows to a process of this environment, as the variable names them.

    Read as CUDA reads it: the list ends at the first entry that is no GPU of this machine.
    """
    there = sum(path.name[6:].isdecimal() for path in DEVICES.glob("nvidia*"))
    listed = environment.get(contract.ENV_VISIBLE_GPUS)
    if listed is None or there == 0:
        return tuple(map(str, range(there)))
    entries = dict.fromkeys(entry.strip() for entry in listed.split(","))
    return tuple(takewhile(lambda entry: _is_there(entry, there), entries))


def _is_there(entry: str, there: int) -> bool:
    if entry.isdecimal():
        return int(entry) < there
    return entry.startswith(("GPU-", "MIG-"))


def devices(pods: Iterable[Pod], visible: Iterable[str]) -> dict[str, str]:
    """The variable of each pod, by its name: no GPU in two pods, none in a pod that asks for none.

    A pod keeps its GPUs for as long as it runs: the ranks of every attempt inherit them. Visible
    are at least as many as they need.
    """
    free = iter(visible)
    return {pod.name: ",".join(islice(free, pod.gpus)) for pod in pods}
