"""Environment of a process by the container contract, read once into one record."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from ppojob_api import contract
from ppojob_api.run_config import RunConfig
from ppojob_api.well_known import RoleName
from ppojob_trainer import remote_files
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.processor import has_native_bfloat16


@dataclass(frozen=True)
class ApiAccess:
    """How a pod of a cluster reaches the API server.

    Attributes:
        credentials: folder of `token` and `ca.crt`; the kubelet replaces both in time.
    """

    host: str
    port: int
    credentials: Path


@dataclass(frozen=True)
class PodEnvironment:
    """The contract's variables, parsed; docs/contract.md has the table.

    Attributes:
        config: the resolved run configuration; what it left to the processor is resolved too.
        address: IP address to bind.
        scratch: writable folder of the pod's own.
        address_book: pod name -> IP address; empty where DNS resolves names.
        api_access: the way to the API server; None where there is none for this pod.
        parent_pid: the process that this one does not outlive; of a supervisor the runner, or the
            server that forked it; None on a cluster.
    """

    config: RunConfig
    role: RoleName
    pod_index: int
    address: str
    keys: Path
    run_folder: Path
    scratch: Path
    address_book: Mapping[str, str]
    api_access: ApiAccess | None
    parent_pid: int | None

    def host(self, name: str) -> str:
        """Where to reach a pod: its address in the book, else its name."""
        return self.address_book.get(name, name)

    def located(self) -> "PodEnvironment":
        """The same with paths for the URLs of the job, which its controller's pod has fetched."""
        return replace(self, config=remote_files.located(self.config, self.run_folder))


@dataclass(frozen=True)
class RankEnvironment:
    """What a supervisor tells the processes that it starts.

    `rank` is that within the role's world, `local_rank` that within the pod.
    """

    rank: int
    local_rank: int
    attempt: int


def variables_of_code(role: RoleName) -> tuple[str, ...]:
    """Names of the variables that reward functions, or tools, may see besides the few of all."""
    return tuple(os.environ.get(contract.VARIABLES_OF_CODE[role], "").split())


def read_pod_environment() -> PodEnvironment:
    """Read the variables that the operator or the local runner has set.

    Raises:
        ConfigError: one is missing or not of its form.
    """
    given = os.environ
    book, access = given.get(contract.ENV_ADDRESS_BOOK), given.get(contract.ENV_SERVICE_ACCOUNT)
    parent = given.get(contract.ENV_DIE_WITH_PARENT)
    try:
        config = RunConfig.from_json(Path(given[contract.ENV_CONFIG]).read_bytes())
        host, port = contract.ENV_API_HOST, contract.ENV_API_PORT
        return PodEnvironment(
            config=config.on_processor(native_bfloat16=has_native_bfloat16()),
            role=cast(RoleName, given[contract.ENV_ROLE]),
            pod_index=int(given[contract.ENV_POD_INDEX]),
            address=given[contract.ENV_POD_ADDRESS],
            keys=Path(given[contract.ENV_KEYS]),
            run_folder=Path(given[contract.ENV_RUN_FOLDER]),
            scratch=Path(given[contract.ENV_SCRATCH]),
            address_book=json.loads(Path(book).read_text()) if book else {},
            api_access=ApiAccess(given[host], int(given[port]), Path(access)) if access else None,
            parent_pid=int(parent) if parent else None,
        )
    except KeyError as missing:
        name = missing.args[0]
        raise ConfigError(f"environment: {name} is not set; see docs/contract.md") from missing
    except (OSError, ValueError) as problem:
        raise ConfigError(f"environment: {problem}; see docs/contract.md") from problem


def read_rank_environment() -> RankEnvironment:
    """Read the variables that the supervisor has set."""
    return RankEnvironment(
        rank=int(os.environ[contract.ENV_RANK]),
        local_rank=int(os.environ[contract.ENV_LOCAL_RANK]),
        attempt=int(os.environ[contract.ENV_ATTEMPT]),
    )
