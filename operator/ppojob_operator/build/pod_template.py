"""Pod templates of the roles: the container contract on a cluster. Pure.

Every pod passes the Pod Security Standard `restricted`, with a read-only root file system.
"""

import hashlib
from dataclasses import dataclass
from typing import Any, Final

from ppojob_api import contract
from ppojob_api.contract import CODE_FOLDER
from ppojob_api.run_config import RunConfig
from ppojob_api.topology import RoleTopology
from ppojob_api.v1alpha1.pod_settings import (
    EnvironmentVariable,
    PodSettings,
    PodVolume,
    settings_of,
)
from ppojob_api.well_known import ANNOTATION_CONFIG_DIGEST, RoleName, workload_name
from ppojob_operator.build.metadata import (
    ANNOTATION_LAYOUT,
    account_name,
    claim_name,
    has_account,
    labels,
    selector,
)
from ppojob_operator.build.pods import environment
from ppojob_operator.settings import Settings
from ppojob_operator.state import Job

CONTAINER: Final = "trainer"
ROOT: Final = "/ppojob"
"""Root of all mounts of the job."""
SECRET_FILE: Final = "role.key"
PUBLIC_FILE: Final = "public.json"
"""Names of the key files in a pod; docs/contract.md."""

_USER: Final = 1000
_OWN_USER: Final = {
    "runAsUser": _USER,
    "runAsGroup": _USER,
    "fsGroup": _USER,
    "fsGroupChangePolicy": "OnRootMismatch",
}
_MOUNTS: Final = {name: f"{ROOT}/{name}" for name in ("config", "keys", "run", "scratch")}
_RANK_GRACE_SECONDS: Final = 30
_CHECKPOINT_GRACE_SECONDS: Final = 120
_UNREACHABLE_SECONDS: Final = 30
_READ_BY_GROUP: Final = 0o440
_SERVICE_ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Where Kubernetes mounts the token with `automountServiceAccountToken`."""


@dataclass(frozen=True, slots=True)
class PodConfig:
    """Configuration that a job's pods run."""

    run: RunConfig
    text: str  # the run configuration as canonical JSON, without defaults
    digest: str  # SHA-256 of it
    layout: str  # SHA-256 of its layout
    settings: tuple[PodSettings, ...]  # of the pods

    @classmethod
    def of(cls, run: RunConfig, layout: bytes, settings: tuple[PodSettings, ...]) -> "PodConfig":
        """Serialise a run configuration; `layout` is canonical JSON."""
        # Without defaults, so that pods of an older image can read it after an edit of the job.
        text = run.to_short_json()
        digest, layout_digest = (hashlib.sha256(one).hexdigest() for one in (text, layout))
        return cls(run, text.decode("ascii"), digest, layout_digest, settings)


def config_map_name(job: Job, config: PodConfig) -> str:
    """`<job>-config-<digest>`: each configuration has its own object."""
    return f"{job.name}-config-{config.digest[:10]}"


def pod_template(
    job: Job, config: PodConfig, role: RoleTopology, defaults: Settings
) -> dict[str, Any]:
    """Build a role's pod template; `defaults` apply where the job sets nothing."""
    settings = settings_of(config.settings, role.role)
    has_token = has_account(role.role, config.run.spec.agent)
    volumes, mounts = _volumes(job, config, role, settings)
    grace = _RANK_GRACE_SECONDS
    if role.role == "controller":
        # It finishes its step and writes a checkpoint.
        grace = int(config.run.spec.timeouts.stage_seconds) + _CHECKPOINT_GRACE_SECONDS
    spec: dict[str, Any] = {
        "automountServiceAccountToken": has_token,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace,
        "securityContext": {
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
            **({} if defaults.openshift else _OWN_USER),
        },
        "tolerations": _tolerations(settings),
        "containers": [{**_container(config, role, settings, defaults), "volumeMounts": mounts}],
        "volumes": volumes,
    }
    if has_token:
        spec["serviceAccountName"] = account_name(job, role.role)
    spec |= _placement(job, role.role, settings, defaults)
    metadata = {
        "labels": labels(job, role.role),
        "annotations": {
            ANNOTATION_CONFIG_DIGEST: config.digest,
            ANNOTATION_LAYOUT: config.layout,
        },
    }
    return _merged({"metadata": metadata, "spec": spec}, settings.pod_overrides)


def _tolerations(settings: PodSettings) -> list[dict[str, Any]]:
    default = [
        {
            "key": f"node.kubernetes.io/{taint}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": _UNREACHABLE_SECONDS,
        }
        for taint in ("not-ready", "unreachable")
    ]
    requested = [
        toleration.model_dump(mode="json", by_alias=True, exclude_none=True)
        for toleration in settings.tolerations
    ]
    return default + requested


def _placement(
    job: Job, role: RoleName, settings: PodSettings, defaults: Settings
) -> dict[str, Any]:
    of_default_image = defaults.image_pull_secrets if settings.image is None else ()
    secrets = dict.fromkeys((*settings.image_pull_secrets, *of_default_image))
    spread = [
        {
            "topologyKey": one.topology_key,
            "maxSkew": one.max_skew,
            "whenUnsatisfiable": one.when_unsatisfiable,
            "labelSelector": {"matchLabels": selector(job, role)},
        }
        for one in settings.topology_spread
    ]
    asked = {
        "nodeSelector": settings.node_selector,
        "affinity": settings.affinity,
        "topologySpreadConstraints": spread,
        "priorityClassName": settings.priority_class_name,
        "runtimeClassName": settings.runtime_class_name,
        "imagePullSecrets": [{"name": name} for name in secrets],
    }
    return {name: value for name, value in asked.items() if value}


def _container(
    config: PodConfig, role: RoleTopology, settings: PodSettings, defaults: Settings
) -> dict[str, Any]:
    probe = {"httpGet": {"path": "/healthz", "port": "health"}, "timeoutSeconds": 5}
    return {
        "name": CONTAINER,
        **_image(settings, defaults),
        "command": list(contract.SUPERVISE_COMMAND),
        "env": _environment(config, role.role, settings),
        "ports": _ports(role.role),
        "resources": _resources(role, settings, settings.gpu_resource or defaults.gpu_resource),
        "startupProbe": {**probe, "periodSeconds": 1, "failureThreshold": 120},
        "readinessProbe": {**probe, "periodSeconds": 5, "failureThreshold": 3},
        "livenessProbe": {**probe, "periodSeconds": 20, "failureThreshold": 6},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        # If a supervisor cannot start, the pod status has the end of its log.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _image(settings: PodSettings, defaults: Settings) -> dict[str, str]:
    """An image of the job has Kubernetes' default pull policy."""
    if settings.image is not None:
        return {"image": settings.image}
    return {"image": defaults.trainer_image, "imagePullPolicy": defaults.image_pull_policy}


def _environment(config: PodConfig, role: RoleName, settings: PodSettings) -> list[dict[str, Any]]:
    # Jobs may share a claim; each has its own folder in it.
    mounts = _MOUNTS | {"run": f"{_MOUNTS['run']}/{config.run.name}"}
    index = _field("metadata.labels['apps.kubernetes.io/pod-index']")
    values = environment(role, mounts, index, _field("status.podIP"), _text)
    requested = {variable.name for variable in settings.env}
    if "HOME" not in requested:
        # A writable folder for libraries.
        values["HOME"] = _text(_MOUNTS["scratch"])
    if has_account(role, config.run.spec.agent):
        values[contract.ENV_SERVICE_ACCOUNT] = _text(_SERVICE_ACCOUNT)
    if requested and role in contract.VARIABLES_OF_CODE:
        # The variables that reward functions or tools may read; never the operator's own.
        names = " ".join(variable.name for variable in settings.env)
        values[contract.VARIABLES_OF_CODE[role]] = _text(names)
    required = [{"name": name, **value} for name, value in values.items()]
    return [*required, *map(_variable, settings.env)]


def _text(text: str) -> dict[str, Any]:
    return {"value": text}


def _field(path: str) -> dict[str, Any]:
    return {"valueFrom": {"fieldRef": {"fieldPath": path}}}


def _ports(role: RoleName) -> list[dict[str, Any]]:
    named = {"supervisor": contract.PORT_SUPERVISOR, "health": contract.PORT_HEALTH}
    if role == "controller":
        named["metrics"] = contract.PORT_METRICS
    return [
        {"name": name, "containerPort": port, "protocol": "TCP"} for name, port in named.items()
    ]


def _variable(variable: EnvironmentVariable) -> dict[str, Any]:
    if variable.secret is None:
        return {"name": variable.name, "value": variable.value or ""}
    reference = {"name": variable.secret.name, "key": variable.secret.key}
    return {"name": variable.name, "valueFrom": {"secretKeyRef": reference}}


def _resources(role: RoleTopology, settings: PodSettings, gpu: str) -> dict[str, Any]:
    """Requests and limits. CPU has no limit, since a throttled rank would stall all others.

    The default CPU request is one core per thread.
    """
    limits: dict[str, str] = dict(settings.resources)
    if settings.memory is not None:
        limits["memory"] = settings.memory
    if role.gpus_per_pod:
        limits[gpu] = str(role.gpus_per_pod)
    threads = str(role.ranks_per_pod * role.threads_per_rank)
    cores = limits.pop("cpu", "100m" if role.role == "controller" else threads)
    resources: dict[str, Any] = {"requests": {"cpu": cores, **limits}}
    return resources | ({"limits": limits} if limits else {})


def _volumes(
    job: Job, config: PodConfig, role: RoleTopology, settings: PodSettings
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Volumes of a pod, and where its container mounts them."""
    claim = _run_claim(config)
    keys = {
        "secretName": workload_name(job.name, role.role),
        "defaultMode": _READ_BY_GROUP,
        "items": [{"key": name, "path": name} for name in (SECRET_FILE, PUBLIC_FILE)],
    }
    shared = {
        "medium": "Memory",
        "sizeLimit": settings.shared_memory or ("8Gi" if role.gpus_per_pod else "1Gi"),
    }
    code = dict.fromkeys(one.name for _, who, one in config.run.spec.code_maps if who == role.role)
    every: list[tuple[str, dict[str, Any], str, bool]] = [
        ("config", {"configMap": {"name": config_map_name(job, config)}}, _MOUNTS["config"], True),
        ("keys", {"secret": keys}, _MOUNTS["keys"], True),
        ("run", {"persistentVolumeClaim": {"claimName": claim}}, _MOUNTS["run"], False),
        # No sizeLimit, which evicts a pod: how much engines and tools write depends on the job.
        # Its limit of ephemeral-storage covers these folders and the logs.
        ("scratch", {"emptyDir": {}}, _MOUNTS["scratch"], False),
        ("shm", {"emptyDir": shared}, "/dev/shm", False),
        ("tmp", {"emptyDir": {}}, "/tmp", False),
    ]
    for index, one in enumerate(settings.volumes):
        # The claim of the run folder is one volume, even if the user mounts it too: a second,
        # read-only volume would make the run folder read-only.
        name = "run" if one.claim_name == claim else f"user-{index}"
        every.append((name, _source(one), one.mount_path, one.read_only))
    for number, name in enumerate(code):
        source = {"configMap": {"name": name}}
        every.append((f"code-{number}", source, f"{CODE_FOLDER}/{name}", True))
    volumes: dict[str, dict[str, Any]] = {}
    for name, source, _, _ in every:
        volumes.setdefault(name, {"name": name, **source})
    return list(volumes.values()), [
        {"name": name, "mountPath": path, **({"readOnly": True} if is_read_only else {})}
        for name, _, path, is_read_only in every
    ]


def _source(volume: PodVolume) -> dict[str, Any]:
    if volume.claim_name is not None:
        claim = {"claimName": volume.claim_name, "readOnly": volume.read_only}
        return {"persistentVolumeClaim": claim}
    if volume.config_map is not None:
        return {"configMap": {"name": volume.config_map}}
    return {"secret": {"secretName": volume.secret, "defaultMode": _READ_BY_GROUP}}


def _run_claim(config: PodConfig) -> str:
    volume = config.run.spec.checkpoint.volume
    assert volume is not None, "`plan.cluster_problems` refuses a job without a volume"
    return volume.claim_name or claim_name(config.run.name)


def _merged(template: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """Merge `podOverrides` into the template; the operator's own keys win."""
    for part, content in overrides.items():
        for name, value in content.items():
            ours = template[part].get(name)
            template[part][name] = {**value, **ours} if isinstance(ours, dict) else value
    return template
