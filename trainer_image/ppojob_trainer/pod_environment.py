"""Environment variables of the container contract (docs/contract.md), parsed."""

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
from ppojob_trainer.kubernetes_api import ApiAccess
from ppojob_trainer.processor import has_native_bfloat16


@dataclass(frozen=True)
class PodEnvironment:
    """Environment of a pod."""

    config: RunConfig  # resolved run configuration, including the data types of this processor
    role: RoleName
    pod_index: int
    address: str  # IP address to bind
    keys: Path
    run_folder: Path
    scratch: Path  # writable folder of the pod
    address_book: Mapping[str, str]  # pod name -> IP address; empty if DNS resolves names
    api_access: ApiAccess | None  # None if the pod has no access
    parent_pid: int | None  # process whose end kills this one; None on a cluster

    def host(self, name: str) -> str:
        """Return the address of a pod, or its name if DNS resolves it."""
        return self.address_book.get(name, name)

    def with_local_paths(self) -> "PodEnvironment":
        """Replace the URLs of the job by the paths to which the controller's pod fetched them."""
        return replace(self, config=remote_files.with_local_paths(self.config, self.run_folder))


@dataclass(frozen=True)
class RankEnvironment:
    """Environment of a rank: `rank` within the role, `local_rank` within the pod."""

    rank: int
    local_rank: int
    attempt: int


def variables_of_code(role: RoleName) -> tuple[str, ...]:
    """Return the extra environment variables that reward functions or tools may read."""
    return tuple(os.environ.get(contract.VARIABLES_OF_CODE[role], "").split())


def read_pod_environment() -> PodEnvironment:
    """Read the variables set by the operator or the runner; ConfigError if they are invalid."""
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
    """Read the variables set by the supervisor."""
    return RankEnvironment(
        rank=int(os.environ[contract.ENV_RANK]),
        local_rank=int(os.environ[contract.ENV_LOCAL_RANK]),
        attempt=int(os.environ[contract.ENV_ATTEMPT]),
    )
