"""The server that forks the processes of a job's pods on this machine: one for all of them."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from ppojob_api import contract
from ppojob_api.topology import Topology
from ppojob_api.well_known import RoleName
from ppojob_trainer import stop_signal
from ppojob_trainer.supervisor.forked_process import listen, rank_variables, suits


def forked_roles(topology: Topology) -> frozenset[RoleName]:
    """Roles whose processes are forked: CUDA does not outlive a fork, nor numpy's threads.

    The libraries are loaded for ranks that hold models; where none is forked nobody is. Nobody is
    either where the kernel has no descriptors of processes (Linux 5.3).
    """
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return frozenset()
    roles = [role for role in topology.with_own_pods if role.device == "cpu"]
    if not any(role.holds_models for role in roles):
        return frozenset()
    return frozenset(role.role for role in roles) - {"retriever"}  # which multiplies with numpy


def environment_of_ranks(inherited: Mapping[str, str]) -> dict[str, str]:
    """What ranks of models on processors load their libraries with, in any job."""
    return {**inherited, **rank_variables(threads=1), contract.ENV_VISIBLE_GPUS: ""}


def server_of_others() -> Path | None:
    """The folder of a server that the environment names, where it suits ranks of ours."""
    folder = os.environ.get(contract.ENV_FORK_SERVER)
    with contextlib.suppress(OSError):  # it may be gone
        if folder and suits(Path(folder), environment_of_ranks(os.environ)):
            return Path(folder)
    return None


def start_fork_server(
    folder: Path, log: Path, inherited: Mapping[str, str], group: int = 0
) -> subprocess.Popen[bytes]:
    """Start a server, which can be asked at once and answers once it has loaded.

    Call from the main thread: it ends with the thread that started it.

    Args:
        folder: made for its socket.
        log: what it has to say is added here.
        inherited: environment that the jobs of its ranks are started with.
        group: process group; 0 for one of its own.
    """
    environment = environment_of_ranks(inherited)
    with listen(folder, environment) as listener, log.open("ab") as output, stop_signal.held_back():
        return subprocess.Popen(
            [sys.executable, "-m", "ppojob_trainer", "fork-server"],
            env={**environment, contract.ENV_DIE_WITH_PARENT: str(os.getpid())},
            stdin=listener.fileno(),
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=group,
        )
