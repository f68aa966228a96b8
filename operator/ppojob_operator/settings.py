"""Settings of the operator, from its environment; the chart writes them."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, get_args

from ppojob_api.v1alpha1.scheduling import SchedulingType

PREFIX = "PPOJOB_OPERATOR_"


@dataclass(frozen=True, slots=True)
class Settings:
    """How this operator works; every field is `PPOJOB_OPERATOR_<FIELD>` in the environment.

    Attributes:
        trainer_image: image of a job's pods where the job names none.
        image_pull_policy: for that image.
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

    trainer_image: str = "ppojob-trainer:latest"
    image_pull_policy: str = "IfNotPresent"
    namespace: str = "default"
    lease: str = "ppojob-operator"
    identity: str = "ppojob-operator"
    watch_namespaces: str = ""
    gpu_resource: str = "nvidia.com/gpu"
    gangs: str = ""
    workers: int = 16
    resync_seconds: float = 600.0
    poll_seconds: float = 5.0
    node_silence_seconds: float = 30.0
    lease_seconds: float = 8.0
    metrics_port: int = 8080
    liveness_port: int = 8081

    @property
    def namespaces(self) -> tuple[str, ...]:
        """Namespaces to serve; empty: all."""
        return _names(self.watch_namespaces)

    @property
    def gang_types(self) -> tuple[SchedulingType, ...]:
        """What may place the pods of a job together."""
        given = _names(self.gangs)
        return tuple(name for name in get_args(SchedulingType) if name in given)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.replace(" ", "").split(",") if name)


def read_settings(environment: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings.

    Raises:
        ValueError: a variable is no setting, or not of its form; all of them at once.
    """
    kinds = {PREFIX + one.name.upper(): one for one in fields(Settings)}
    values: dict[str, Any] = {}
    problems: list[str] = []
    for name, text in environment.items():
        if not name.startswith(PREFIX):
            continue
        if name not in kinds:
            problems.append(f"{name}: no such setting; one of {', '.join(sorted(kinds))}")
            continue
        kind = kinds[name].type
        assert isinstance(kind, type)
        try:
            values[kinds[name].name] = kind(text)
        except ValueError:
            problems.append(f"{name}: got {text!r}: not a number; {kind.__name__}")
    known = [name for name in get_args(SchedulingType) if name != "none"]
    problems += [
        f"{PREFIX}GANGS: got {name!r}: nothing of that name places pods; of {', '.join(known)}"
        for name in _names(values.get("gangs", ""))
        if name not in known
    ]
    if problems:
        raise ValueError("\n".join(problems))
    return Settings(**values)
