"""Platform settings of pods: a few fields instead of a pod template per role."""

import posixpath
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from ppojob_api.v1alpha1.section import (
    Arguments,
    DataKey,
    DeviceName,
    EnvironmentName,
    Items,
    LabelKey,
    LabelValue,
    ObjectName,
    Quantity,
    Section,
)
from ppojob_api.well_known import RoleName

MountPath = Annotated[str, Field(max_length=4_096, pattern=r"^/[^:\x00-\x1f\x7f]*$")]
ImageName = Annotated[str, Field(min_length=1, max_length=1_024, pattern=r"^[^\s\x00-\x1f]+$")]


class Toleration(Section):
    """A taint that the pods tolerate, as Kubernetes writes it."""

    key: LabelKey | None = None
    """Key of the taint; absent, only with operator Exists: every taint."""

    operator: Literal["Exists", "Equal"] = "Equal"
    """How `value` is compared; Exists: not at all."""

    value: LabelValue | None = None
    """Value of the taint; absent, as operator Exists requires: the empty value."""

    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Effect of the taint; absent: every effect."""

    toleration_seconds: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    """How long a taint of effect NoExecute, and no other, is tolerated; absent: forever."""


class TopologySpread(Section):
    """How the pods of a role spread over a topology."""

    topology_key: LabelKey
    """Label of nodes, such as topology.kubernetes.io/zone."""

    max_skew: Annotated[int, Field(ge=1, le=4_096)] = 1
    """By how many pods two domains may differ."""

    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"] = "DoNotSchedule"
    """Whether the spread is required."""


class SecretKey(Section):
    """A value in a Secret of the job's namespace."""

    name: ObjectName
    """Name of the Secret."""

    key: DataKey
    """Key in the Secret."""


class EnvironmentVariable(Section):
    """An environment variable of the container; secret values must come from a Secret."""

    name: EnvironmentName
    """Name of the variable; must not begin with PPOJOB_."""

    value: Annotated[str, Field(max_length=32_768)] | None = None
    """The value; exactly one of value and secret."""

    secret: SecretKey | None = None
    """Secret with the value."""


class PodVolume(Section):
    """A volume of the job's namespace, mounted into the pods."""

    claim_name: ObjectName | None = None
    """PersistentVolumeClaim; exactly one of claimName, configMap and secret."""

    config_map: ObjectName | None = None
    """ConfigMap."""

    secret: ObjectName | None = None
    """Secret."""

    mount_path: MountPath
    """Absolute path in the container; it must not hide anything that a job needs."""

    read_only: bool = True
    """Whether the volume is mounted read-only."""

    @property
    def folder(self) -> str:
        """The normalised mount path."""
        return posixpath.normpath("/" + self.mount_path.lstrip("/"))


class PodSettings(Section):
    """Platform settings of the pods of some or all roles; later items override earlier ones.

    They do not change what is trained, so they may change while the job runs: pods created from
    then on have them.
    """

    roles: Annotated[Items[RoleName], Field(max_length=8)] = ()
    """Roles of the pods; empty: all, including the controller."""

    image: ImageName | None = None
    """Image of the container; absent: the operator's."""

    image_pull_secrets: Annotated[Items[ObjectName], Field(max_length=8)] = ()
    """Names of Secrets with registry credentials."""

    memory: Quantity | None = None
    """Memory request and limit of a pod; absent: none, or those of a LimitRange."""

    shared_memory: Quantity | None = None
    """Size of /dev/shm; absent: 1Gi, with GPUs 8Gi."""

    gpu_resource: DeviceName | None = None
    """Resource name of GPUs; absent: the operator's, nvidia.com/gpu."""

    resources: Annotated[dict[str, Quantity], Field(max_length=16)] = Field(default_factory=dict)
    """cpu, ephemeral-storage, and devices by DOMAIN/NAME. cpu is a request without a limit, by
    default one core per thread."""

    node_selector: Annotated[dict[str, LabelValue], Field(max_length=32)] = Field(
        default_factory=dict
    )
    """Labels that the node must have."""

    tolerations: Annotated[Items[Toleration], Field(max_length=16)] = ()
    """Taints that the pods tolerate."""

    affinity: Arguments = Field(default_factory=dict)
    """Affinity as Kubernetes writes it."""

    topology_spread: Annotated[Items[TopologySpread], Field(max_length=4)] = ()
    """How the pods of a role spread."""

    priority_class_name: ObjectName | None = None
    """PriorityClass."""

    runtime_class_name: ObjectName | None = None
    """RuntimeClass."""

    env: Annotated[Items[EnvironmentVariable], Field(max_length=64)] = ()
    """Environment of the container."""

    volumes: Annotated[Items[PodVolume], Field(max_length=16)] = ()
    """Volumes with models, data and the like."""

    pod_overrides: Arguments = Field(default_factory=dict)
    """A partial pod template for other fields; only those of an allow-list."""

    def over(self, before: "PodSettings") -> "PodSettings":
        """These settings merged over those before them.

        Maps and lists are joined, nested maps too. A variable, a volume and a topology spread
        replace an earlier one of the same name, path and topology.
        """
        merged: dict[str, object] = {}
        earlier = dict(before)
        for name, own in self:
            general = earlier[name]
            if isinstance(own, dict):
                merged[name] = _merged(general, own)
            elif isinstance(own, tuple):
                merged[name] = _joined(general, own)
            else:
                merged[name] = general if own is None else own
        return self.model_copy(update=merged)


def _merged(general: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**general, **own}
    for key in general.keys() & own.keys():
        if isinstance(general[key], dict) and isinstance(own[key], dict):
            merged[key] = _merged(general[key], own[key])
    return merged


def _joined(general: tuple[object, ...], own: tuple[object, ...]) -> tuple[object, ...]:
    taken = {_place(item) for item in own}
    return (*(item for item in general if _place(item) not in taken), *dict.fromkeys(own))


def _place(item: object) -> object:
    """The merge key of a list's item, as in Kubernetes."""
    match item:
        case EnvironmentVariable():
            return item.name
        case PodVolume():
            return item.folder
        case TopologySpread():
            return item.topology_key
    return item


def settings_of(pods: tuple[PodSettings, ...], role: RoleName) -> PodSettings:
    """The settings of a role's pods: all items for the role, later ones over earlier ones."""
    merged = PodSettings()
    for settings in pods:
        if not settings.roles or role in settings.roles:
            merged = settings.over(merged)
    return merged
