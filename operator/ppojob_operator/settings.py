"""Settings of the operator, from its environment; the chart writes them."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, TypeAdapter, ValidationError

PREFIX = "PPOJOB_OPERATOR_"
GangType = Literal["kueue", "volcano", "coscheduling", "workload"]


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in text.replace(" ", "").split(",") if name))


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the operator; each field is `PPOJOB_OPERATOR_<FIELD>` in the environment."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    trainer_image: str = "ppojob-trainer:latest"  # image of a job's pods if the job names none
    image_pull_policy: str = "IfNotPresent"  # of that image
    # Secrets in the job's namespace with credentials for that image, separated by commas.
    image_pull_secrets: Annotated[tuple[str, ...], BeforeValidator(_names)] = ()
    namespace: str = "default"  # of the operator and its Lease
    # Name of the Lease; replicas that serve the same namespaces share one.
    lease: str = "ppojob-operator"
    identity: str = "ppojob-operator"
    # Namespaces to serve, separated by commas; empty: all.
    watch_namespaces: Annotated[tuple[str, ...], BeforeValidator(_names)] = ()
    gpu_resource: str = "nvidia.com/gpu"  # resource name of GPUs if the job names none
    # ClusterRole of tools pods with agent.containers; empty: no job may have these.
    row_containers_role: str = "ppojob-row-containers"
    openshift: bool = False  # whether pods name no user, because the cluster assigns one to each
    # Enabled gang schedulers, separated by commas: kueue, volcano, coscheduling, workload; objects
    # of others are neither read nor written.
    gangs: Annotated[tuple[GangType, ...], BeforeValidator(_names)] = ()
    workers: int = 16  # number of jobs reconciled concurrently
    resync_seconds: float = 600.0  # interval at which each job is reconciled without any event
    poll_seconds: float = 5.0  # interval at which the supervisor of a running controller is polled
    # Pods of a node that does not respond for this long are deleted.
    node_silence_seconds: float = 30.0
    lease_seconds: float = 8.0  # duration of the Lease; without renewal another replica takes over
    metrics_port: int = 8080  # of the Prometheus endpoint; 0: none
    liveness_port: int = 8081  # of the liveness probe


def read_settings(environment: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings.

    Raises:
        ValueError: variables that are no settings or have invalid values, all at once.
    """
    variables = {
        name.removeprefix(PREFIX).lower(): text
        for name, text in environment.items()
        if name.startswith(PREFIX)
    }
    try:
        return TypeAdapter(Settings).validate_python(variables)
    except ValidationError as wrong:
        known = ", ".join(f"{PREFIX}{field.name.upper()}" for field in fields(Settings))
        lines = [
            f"{PREFIX}{str(error['loc'][0]).upper()}: "
            + (
                f"no such setting; one of {known}"
                if error["type"] == "unexpected_keyword_argument"
                else f"got {error['input']!r}: {error['msg']}"
            )
            for error in wrong.errors()
        ]
        raise ValueError("\n".join(lines)) from None
