"""All objects of a job, in the order of their creation. Pure."""

import base64
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from ppojob_api import contract
from ppojob_api.topology import RoleTopology
from ppojob_api.v1alpha1.schedule import VolumeSpec
from ppojob_api.well_known import (
    ANNOTATION_CONFIG_DIGEST,
    GROUP,
    PLURAL,
    ROLE_SLUGS,
    RoleName,
    workload_name,
)
from ppojob_operator.build import protection
from ppojob_operator.build.gang import member
from ppojob_operator.build.metadata import (
    ANNOTATION_GENERATION,
    ANNOTATION_LAYOUT,
    ANNOTATION_TEMPLATE,
    account_name,
    claim_name,
    controller_name,
    digest,
    has_account,
    manifest,
    selector,
)
from ppojob_operator.build.pod_template import (
    PUBLIC_FILE,
    SECRET_FILE,
    PodConfig,
    config_map_name,
    pod_template,
)
from ppojob_operator.build.pods import CONFIG_FILE
from ppojob_operator.settings import Settings
from ppojob_operator.state import Job, Manifest, Placement, PodSet

_PAIRS: Final = "pairs.json"

KeyPairs = Mapping[RoleName, tuple[str, str]]
"""Role -> public and secret key, each 40 letters of Z85."""


def base_objects(
    job: Job, config: PodConfig, *, is_partly_placed: bool = False
) -> list[dict[str, Any]]:
    """The objects that must exist before the first pod, without Secrets.

    `is_partly_placed`: some pods are scheduled, others are unschedulable.
    """
    roles = [role.role for role in config.run.topology.with_own_pods]
    volume = config.run.spec.checkpoint.volume
    return [
        *([_claim(job, volume)] if volume is not None and volume.size is not None else []),
        _config_map(job, config),
        *(_service_account(job, role, name) for role, name in _accounts(job, config).items()),
        _role(job),
        *protection.network_policies(job, roles, config.run.spec.agent),
        protection.disruption_budget(job, is_partly_placed=is_partly_placed),
        *(_service(job, role) for role in roles),
    ]


def key_templates(job: Job, config: PodConfig) -> dict[RoleName, Manifest]:
    """The Secrets of the roles without keys, which the `Reconciler` generates; controller first.

    The controller's Secret also holds the key pairs of all roles, of which its pod mounts only its
    own. So one write determines all keys, and the other Secrets can be created from it later.
    """
    content = {"type": "Opaque", "immutable": True}
    return {
        one.role: manifest("Secret", job, workload_name(job.name, one.role), one.role, **content)
        for one in config.run.topology.with_own_pods
    }


def secret(template: Manifest, role: RoleName, pairs: KeyPairs) -> dict[str, Any]:
    """The Secret of a role."""
    public = {name: pair[0] for name, pair in pairs.items()}
    files = {SECRET_FILE: pairs[role][1], PUBLIC_FILE: json.dumps(public, sort_keys=True)}
    if role == "controller":
        files[_PAIRS] = json.dumps({name: list(pair) for name, pair in pairs.items()})
    data = {name: base64.b64encode(text.encode()).decode() for name, text in files.items()}
    return {**template, "data": data}


def read_pairs(controllers: Manifest) -> KeyPairs:
    """Read the key pairs of all roles from the controller's Secret.

    Raises:
        ValueError: it has none.
    """
    try:
        pairs = json.loads(base64.b64decode(controllers["data"][_PAIRS]))
        return {role: (str(public), str(private)) for role, (public, private) in pairs.items()}
    except (KeyError, TypeError, AttributeError) as problem:
        raise ValueError(f"the controller's Secret has no {_PAIRS}") from problem


def pod_sets(job: Job, config: PodConfig, defaults: Settings) -> tuple[PodSet, ...]:
    """The pods of all roles, including the controller."""
    return tuple(
        PodSet(ROLE_SLUGS[role.role], len(role.pods), pod_template(job, config, role, defaults))
        for role in config.run.topology.with_own_pods
    )


def stateful_sets(
    job: Job,
    config: PodConfig,
    roles: Iterable[RoleTopology],
    defaults: Settings,
    placements: Mapping[str, Placement],
) -> list[dict[str, Any]]:
    """The StatefulSets of some roles; `placements` is what an admission adds, by role slug."""
    sets = []
    for role in roles:
        template = pod_template(job, config, role, defaults)
        placement = placements.get(ROLE_SLUGS[role.role])
        rendered = _stateful_set(job, role, member(job, template, placement))
        rendered["metadata"]["annotations"][ANNOTATION_LAYOUT] = config.layout
        sets.append(rendered)
    return sets


def _config_map(job: Job, config: PodConfig) -> dict[str, Any]:
    """The run configuration; immutable, so a pod keeps the configuration of its start."""
    name, data = config_map_name(job, config), {CONFIG_FILE: config.text}
    rendered = manifest("ConfigMap", job, name, immutable=True, data=data)
    rendered["metadata"]["annotations"] = {ANNOTATION_CONFIG_DIGEST: config.digest}
    return rendered


def _claim(job: Job, volume: VolumeSpec) -> dict[str, Any]:
    """The claim of the run folder; with `whenDeleted: Retain` it has no owner reference."""
    spec: dict[str, Any] = {
        "accessModes": [volume.access_mode],
        "resources": {"requests": {"storage": volume.size}},
    }
    if volume.storage_class_name is not None:
        spec["storageClassName"] = volume.storage_class_name
    rendered = manifest("PersistentVolumeClaim", job, claim_name(job.name), spec=spec)
    if volume.when_deleted == "Retain":
        del rendered["metadata"]["ownerReferences"]
    return rendered


def _accounts(job: Job, config: PodConfig) -> dict[RoleName, str]:
    """The ServiceAccounts of the job, by the role whose pods have their tokens."""
    roles = (role.role for role in config.run.topology.with_own_pods)
    return {
        role: account_name(job, role) for role in roles if has_account(role, config.run.spec.agent)
    }


def _service_account(job: Job, role: RoleName, name: str) -> dict[str, Any]:
    """The ServiceAccount of a role; only the spec of its pods mounts the token."""
    return manifest("ServiceAccount", job, name, role, automountServiceAccountToken=False)


def _role(job: Job) -> dict[str, Any]:
    """The permission of the controller: to patch the status of its job.

    A ValidatingAdmissionPolicy of the chart limits it to `status.training`.
    """
    rule = {
        "apiGroups": [GROUP],
        "resources": [f"{PLURAL}/status"],
        "resourceNames": [job.name],
        "verbs": ["patch"],
    }
    return manifest("Role", job, controller_name(job), "controller", rules=[rule])


def role_bindings(job: Job, config: PodConfig, defaults: Settings) -> list[dict[str, Any]]:
    """The RoleBindings of the job's ServiceAccounts.

    The API server accepts the controller's only once its authorizer knows the Role. Tools pods get
    a ClusterRole of the chart, to create the pods of rows and to run commands in them. The operator
    has no such right, so it could not grant it by a Role.
    """
    bindings = []
    for role, name in _accounts(job, config).items():
        granted = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
        if role == "tools":
            granted |= {"kind": "ClusterRole", "name": defaults.row_containers_role}
        subject = {"kind": "ServiceAccount", "name": name, "namespace": job.namespace}
        content = {"roleRef": granted, "subjects": [subject]}
        bindings.append(manifest("RoleBinding", job, name, role, **content))
    return bindings


def _service(job: Job, role: RoleName) -> dict[str, Any]:
    """The headless Service that gives each pod of the role its host name.

    Pods connect to each other before they are ready, so addresses that are not ready are published.
    """
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": selector(job, role),
        "ports": [{"name": "health", "port": contract.PORT_HEALTH, "protocol": "TCP"}],
    }
    return manifest("Service", job, workload_name(job.name, role), role, spec=spec)


def _stateful_set(job: Job, role: RoleTopology, template: Manifest) -> dict[str, Any]:
    """The StatefulSet of a role.

    Parallel: ranks wait for each other, so pods must start together. OnDelete: a changed template
    restarts no pod.
    """
    name = workload_name(job.name, role.role)
    spec = {
        "replicas": len(role.pods),
        "serviceName": name,
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "OnDelete"},
        "revisionHistoryLimit": 1,
        "selector": {"matchLabels": selector(job, role.role)},
        "template": template,
    }
    rendered = manifest("StatefulSet", job, name, role.role, spec=spec)
    rendered["metadata"]["annotations"] = {
        ANNOTATION_GENERATION: str(job.generation),
        ANNOTATION_TEMPLATE: digest(spec),
    }
    return rendered
