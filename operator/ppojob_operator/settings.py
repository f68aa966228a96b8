"""Settings of the operator, from its environment; the chart writes them."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, TypeAdapter, ValidationError

PREFIX = "PPOJOB_OPERATOR_"
GangType = Literal["kueue", "volcano", "workload"]


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in text.replace(" ", "").split(",") if name))


@dataclass(frozen=True, slots=True)
class Settings:
    """How this operator works; every field is `PPOJOB_OPERATOR_<FIELD>` in the environment.

    Attributes:
        trainer_image: image of a job's pods where the job names none.
        image_pull_policy: for that image.
        image_pull_secrets: Secrets of the job's namespace that have the credentials for that image,
            separated by commas.
        namespace: where the operator itself runs, and keeps its Lease.
        lease: name of that Lease; replicas that serve the same namespaces share one.
        identity: name of this replica.
        watch_namespaces: namespaces to serve, separated by commas; empty: all.
        gpu_resource: name under which GPUs are asked for, where the job says nothing else.
        gangs: what may place the pods of a job together, separated by commas: kueue, volcano,
            workload; only of these are objects read and written.
        workers: jobs that are reconciled at the same time.
        resync_seconds: each job is looked at anew after this time, without any event.
        poll_seconds: how often a running controller is asked how it is.
        node_silence_seconds: a node that is silent for so long has lost its pods.
        lease_seconds: after this time without renewal another replica takes over.
        metrics_port: of the Prometheus endpoint; 0: none.
        liveness_port: of the probes.
    """

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    trainer_image: str = "ppojob-trainer:latest"
    image_pull_policy: str = "IfNotPresent"
    image_pull_secrets: Annotated[tuple[str, ...], BeforeValidator(_names)] = ()
    namespace: str = "default"
    lease: str = "ppojob-operator"
    identity: str = "ppojob-operator"
    watch_namespaces: Annotated[tuple[str, ...], BeforeValidator(_names)] = ()
    gpu_resource: str = "nvidia.com/gpu"
    gangs: Annotated[tuple[GangType, ...], BeforeValidator(_names)] = ()
    workers: int = 16
    resync_seconds: float = 600.0
    poll_seconds: float = 5.0
    node_silence_seconds: float = 30.0
    lease_seconds: float = 8.0
    metrics_port: int = 8080
    liveness_port: int = 8081


def read_settings(environment: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings.

    Raises:
        ValueError: a variable is no setting, or not of its form; all of them at once.
    """
    given = {
        name.removeprefix(PREFIX).lower(): text
        for name, text in environment.items()
        if name.startswith(PREFIX)
    }
    try:
        return TypeAdapter(Settings).validate_python(given)
    except ValidationError as wrong:
        known = ", ".join(f"{PREFIX}{one.name.upper()}" for one in fields(Settings))
        told = [
            f"{PREFIX}{str(one['loc'][0]).upper()}: "
            + (
                f"no such setting; one of {known}"
                if one["type"] == "unexpected_keyword_argument"
                else f"got {one['input']!r}: {one['msg']}"
            )
            for one in wrong.errors()
        ]
        raise ValueError("\n".join(told)) from None
