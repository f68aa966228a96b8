"""Local pods: processes on this machine that run the containers of the operator.

Mounts are folders of the run, an address book resolves names, and each pod has an address in
127.0.1.0/24.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

import msgspec

from ppojob_api import contract
from ppojob_api.run_config import RunConfig
from ppojob_api.run_layout import LOGS_FOLDER
from ppojob_api.topology import PodTopology, RoleTopology, Topology
from ppojob_api.well_known import RoleName
from ppojob_cli import gpus
from ppojob_operator.build.pods import CONFIG_FILE, environment
from ppojob_trainer import stop_signal
from ppojob_trainer.containers.local import delete_leftovers
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.rpc.keys import write_key_folders
from ppojob_trainer.rpc.messages.pods import PodStatus
from ppojob_trainer.supervisor.forked_process import (
    ForkClient,
    Process,
    is_compatible,
    listen,
    rank_variables,
)

MOUNTS_FOLDER = ".pods"
"""Keys, addresses and scratch folders of the running pods; recreated by each run."""

OF_SUPERVISORS = "supervisors"
"""Folder of the supervisors' fork server, within that of the ranks' fork server."""

_LAST_ADDRESS = 254
_FORK_SECONDS = 60.0
_END_SECONDS = 10.0
_HTTP_SECONDS = 2.0
_DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Opener without proxies, because the pods are on this machine."""


class Addresses:
    """Reserves addresses in 127.0.1.0/24, exclusively on this machine.

    Each pod has its own address, with the same ports; each rank listens on its own port.

    A name in the kernel's list of sockets reserves an address. That list, like the addresses,
    belongs to the network namespace: all users of the machine share it, and a container has its
    own. The kernel removes the name when the process ends.
    """

    def __init__(self, ranks_per_pod: int = 1) -> None:
        self._ports: tuple[int, ...] = (
            contract.PORT_SUPERVISOR,
            contract.PORT_STORE,
            contract.PORT_HEALTH,
            contract.PORT_METRICS,
            contract.PORT_JUDGE,
            *range(contract.PORT_FIRST_RANK, contract.PORT_FIRST_RANK + ranks_per_pod),
        )
        self._taken: list[socket.socket] = []
        self._next = 1

    def take(self) -> str:
        """Reserve one more address; a `ConfigError` if there is none."""
        busy_port = None
        while self._next <= _LAST_ADDRESS:
            address = f"127.0.1.{self._next}"
            self._next += 1
            name = socket.socket(socket.AF_UNIX)
            try:
                name.bind(f"\0ppojob/{address}")
            except OSError:
                name.close()
                continue
            # It is not reserved, but another program may listen there.
            busy_port = self._busy_port(address)
            if busy_port is None:
                self._taken.append(name)
                return address
            name.close()
        if busy_port is not None:
            raise ConfigError(
                f"roles: got port {busy_port} taken at the addresses for pods on this machine, up "
                f"to 127.0.1.{_LAST_ADDRESS}: a program listens there; end it, see ss -ltnp"
            )
        raise ConfigError(
            f"roles: all {_LAST_ADDRESS} addresses for pods on this machine are taken; "
            "fewer replicas, or wait for another run to end"
        )

    def close(self) -> None:
        for name in self._taken:
            name.close()
        self._taken.clear()

    def _busy_port(self, address: str) -> int | None:
        for port in self._ports:
            try:
                socket.create_server((address, port)).close()
            except OSError:
                return port
        return None


@dataclass
class RunningPod:
    """A pod and the process that is its container."""

    pod: PodTopology
    role: RoleName
    address: str
    process: Process
    _last: PodStatus | None = None

    def status(self) -> PodStatus | None:
        """Return the status of its supervisor; the last one while it is too busy to answer in time.

        None while nobody listens there, or another program does.
        """
        url = f"http://{self.address}:{contract.PORT_HEALTH}/status"
        try:
            with _DIRECTLY.open(url, timeout=_HTTP_SECONDS) as answer:
                self._last = msgspec.json.decode(answer.read(), type=PodStatus)
        except (OSError, HTTPException, msgspec.DecodeError) as error:
            is_late = isinstance(getattr(error, "reason", error), TimeoutError)
            return self._last if is_late else None
        return self._last


class LocalPods:
    """All pods of a job; the run folder is their mount `run`."""

    def __init__(self, config: RunConfig, run_folder: Path) -> None:
        self._config = config
        self._run_folder = run_folder
        self._addresses = Addresses(max(role.ranks_per_pod for role in config.topology.roles))
        self._mounts = run_folder.absolute() / MOUNTS_FOLDER
        self._group: int | None = None
        self._fork_servers: list[subprocess.Popen[bytes]] = []
        self._forks: ForkClient | None = None  # of supervisors
        self.pods: list[RunningPod] = []

    @property
    def controller(self) -> RunningPod:
        return next(running for running in self.pods if running.role == "controller")

    def start(self) -> None:
        """Start all pods. Call from the main thread: they end with that thread."""
        shutil.rmtree(self._mounts, ignore_errors=True)
        self._mounts.mkdir(mode=0o700)
        roles = self._config.topology.with_own_pods
        addresses = {pod.host: self._addresses.take() for role in roles for pod in role.pods}
        write_key_folders(self._mounts / "keys", tuple(role.role for role in roles))
        (self._mounts / "config").mkdir()
        (self._mounts / "config" / CONFIG_FILE).write_bytes(self._config.to_json())
        book = self._mounts / "addresses.json"
        book.write_text(json.dumps(addresses))
        (self._run_folder / LOGS_FOLDER).mkdir(exist_ok=True)
        devices = gpus.devices(roles, gpus.visible_gpus(os.environ))
        roles_forked = _forked_roles(self._config.topology)
        forked_by = self._find_fork_servers() if roles_forked else None
        if forked_by:
            self._forks = ForkClient(forked_by / OF_SUPERVISORS)
        for role in roles:
            is_forked = forked_by and role.role in roles_forked
            of_role = {contract.ENV_FORK_SERVER: str(forked_by)} if is_forked else {}
            for pod in role.pods:
                own = {**of_role, contract.ENV_VISIBLE_GPUS: devices[pod.name]}
                self._start_pod(role, pod, addresses[pod.host], book, own)

    def dead(self) -> list[RunningPod]:
        """Return the pods whose supervisor has ended, which is always a failure."""
        return [running for running in self.pods if running.process.poll() is not None]

    def ask_to_stop(self) -> None:
        """Have the controller finish its step, write a checkpoint and end."""
        self.controller.process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """Stop all pods, kill slow ones, and remove their folders."""
        for running in self.pods:
            if running.role != "controller":
                running.process.send_signal(stop_signal.END_OF_ROLE)
        deadline = time.monotonic() + _END_SECONDS
        for running in self.pods:
            if running.role == "controller":
                running.process.send_signal(signal.SIGKILL)
            try:
                running.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                running.process.send_signal(signal.SIGKILL)
                running.process.wait()
        for server in self._fork_servers:
            server.kill()
            server.wait()
        self._kill_group()
        agent = self._config.spec.agent
        if agent is not None and agent.containers is not None:
            delete_leftovers()
        self._addresses.close()
        shutil.rmtree(self._mounts, ignore_errors=True)

    def _find_fork_servers(self) -> Path:
        """Return the folder of the fork servers, which are started unless they are shared."""
        if shared := _shared_fork_servers():
            return shared
        folder = self._mounts / "fork-server"
        log = self._run_folder / LOGS_FOLDER / "fork-server.log"
        spec, generating = self._config.spec, self._config.topology.generating
        draws = spec.algorithm.given is None and spec.rollout.replay is None
        vllm = draws and generating.device == "cpu" and spec.rollout.engine == "vllm"
        self._fork_servers = start_fork_servers(folder, log, os.environ, vllm=vllm)
        self._group = self._fork_servers[0].pid
        return folder

    def _start_pod(
        self,
        role: RoleTopology,
        pod: PodTopology,
        address: str,
        book: Path,
        of_this_machine: dict[str, str],
    ) -> None:
        scratch = self._mounts / "scratch" / pod.name
        scratch.mkdir(parents=True)
        mounts = {
            "config": str(self._mounts / "config"),
            "keys": str(self._mounts / "keys" / role.role),
            "run": str(self._run_folder.absolute()),
            "scratch": str(scratch),
        }
        variables = {**os.environ}
        variables.pop(contract.ENV_FORK_SERVER, None)
        variables |= environment(role.role, mounts, str(pod.index), address, str)
        variables[contract.ENV_ADDRESS_BOOK] = str(book)
        variables[contract.ENV_DIE_WITH_PARENT] = str(os.getpid())
        variables |= of_this_machine
        log_path = self._run_folder / LOGS_FOLDER / f"{pod.name}.log"
        # One process group for all pods, not the terminal's: Ctrl-C is the runner's to handle.
        group = self._group or 0
        with log_path.open("ab") as log:
            process = None if role.gpus_per_pod else self._forked(variables, log.fileno(), group)
            process = process or _started(variables, log.fileno(), group)
        self._group = self._group or process.pid
        self.pods.append(RunningPod(pod, role.role, address, process))

    def _forked(self, variables: dict[str, str], log: int, group: int) -> Process | None:
        """Fork a supervisor; None if that is impossible."""
        if self._forks is None:
            return None
        try:
            process = self._forks.fork(
                "supervise",
                {**variables, **rank_variables(threads=1)},
                outputs=(log, log),
                group=group,
            )
            if process.is_forked_within(_FORK_SECONDS):
                return process
            process.send_signal(signal.SIGKILL)
            raise OSError("it ended, or took too long")
        except OSError as problem:
            line = f"fork server: {problem}; the supervisor is started as a new process\n"
            os.write(log, line.encode())
            return None

    def _kill_group(self) -> None:
        """Kill processes that a killed pod may have left in the group."""
        if self._group is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._group, signal.SIGKILL)


def _started(variables: dict[str, str], log: int, group: int) -> Process:
    python, *arguments = contract.SUPERVISE_COMMAND
    assert python == "python"
    with stop_signal.sigterm_blocked():
        return subprocess.Popen(
            [sys.executable, *arguments],
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            process_group=group,
        )


def _forked_roles(topology: Topology) -> frozenset[RoleName]:
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


def _environment_of_ranks(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in which CPU ranks of any job load their libraries."""
    return {**inherited, **rank_variables(threads=1), contract.ENV_VISIBLE_GPUS: ""}


def _shared_fork_servers() -> Path | None:
    folder = os.environ.get(contract.ENV_FORK_SERVER)
    with contextlib.suppress(OSError):  # it may be gone
        if folder and is_compatible(Path(folder), _environment_of_ranks(os.environ)):
            return Path(folder)
    return None


def start_fork_servers(
    folder: Path, log: Path, inherited: Mapping[str, str], *, vllm: bool
) -> list[subprocess.Popen[bytes]]:
    """Start the servers that fork supervisors, and the processes of all pods on this machine.

    They accept requests at once, and answer after loading. Call it from the main thread: they end
    with the thread that starts them.

    The folder is created for their sockets; `inherited` is the environment of the jobs; with `vllm`
    ranks generate with it.
    """
    of_ranks = "vllm-fork-server" if vllm else "fork-server"
    environment = _environment_of_ranks(inherited)
    servers: list[subprocess.Popen[bytes]] = []
    for command, place in ((of_ranks, folder), ("supervisor-server", folder / OF_SUPERVISORS)):
        with (
            listen(place, environment) as listener,
            log.open("ab") as output,
            stop_signal.sigterm_blocked(),
        ):
            server = subprocess.Popen(
                [sys.executable, "-m", "ppojob_trainer", command],
                env={**environment, contract.ENV_DIE_WITH_PARENT: str(os.getpid())},
                stdin=listener.fileno(),
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=servers[0].pid if servers else 0,
            )
        servers.append(server)
    return servers
