"""All objects of a job, in the order in which they must be there. Pure."""

from collections.abc import Mapping
from typing import Any

from ppojob_api import contract
from ppojob_api.topology import RoleTopology
from ppojob_api.v1alpha1.pod_settings import PodSettings, settings_of
from ppojob_api.well_known import GROUP, PLURAL, ROLE_SLUGS, RoleName, workload_name
from ppojob_operator.build import protection
from ppojob_operator.build.config_map import PodConfig, config_map
from ppojob_operator.build.gang import member
from ppojob_operator.build.keys import secret_template
from ppojob_operator.build.metadata import (
    ANNOTATION_GENERATION,
    ANNOTATION_TEMPLATE,
    controller_name,
    manifest,
    selector,
)
from ppojob_operator.build.pod_template import pod_template
from ppojob_operator.difference import digest
from ppojob_operator.settings import Settings
from ppojob_operator.state import Job, Manifest, Placement


def surroundings(job: Job, config: PodConfig) -> list[dict[str, Any]]:
    """What must be there before the first pod, Secrets aside."""
    roles = [role.role for role in config.run.topology.with_own_pods]
    return [
        config_map(job, config),
        _service_account(job),
        _role(job),
        *protection.network_policies(job, roles, config.run.spec.agent),
        protection.disruption_budget(job),
        *(_service(job, role) for role in roles),
    ]


def bindings(job: Job) -> list[dict[str, Any]]:
    """What the API server takes when it knows of the Role, shortly after that was made."""
    return [_role_binding(job)]


def key_templates(job: Job, config: PodConfig) -> dict[RoleName, Manifest]:
    """The Secrets without their keys, the controller's first."""
    return {
        role.role: secret_template(job, role.role) for role in config.run.topology.with_own_pods
    }


def stateful_sets(
    job: Job,
    config: PodConfig,
    roles: tuple[RoleTopology, ...],
    settings: tuple[PodSettings, ...],
    defaults: Settings,
    placements: Mapping[str, Placement],
) -> list[dict[str, Any]]:
    """The StatefulSets of some roles; `placements` is what a queue adds, by the role's slug."""
    sets = []
    for role in roles:
        template = pod_template(job, config, role, settings_of(settings, role.role), defaults)
        placement = placements.get(ROLE_SLUGS[role.role])
        sets.append(_stateful_set(job, role, member(job, template, placement)))
    return sets


def _service_account(job: Job) -> dict[str, Any]:
    """The identity of the controller's pod; a token is mounted by the pod, not by default."""
    return manifest(
        "ServiceAccount",
        job,
        controller_name(job),
        "controller",
        automountServiceAccountToken=False,
    )


def _role(job: Job) -> dict[str, Any]:
    """The one right: to patch the status of this very job.

    A ValidatingAdmissionPolicy of the chart holds it to `status.training`; no other pod of a job
    gets a token at all.
    """
    rule = {
        "apiGroups": [GROUP],
        "resources": [f"{PLURAL}/status"],
        "resourceNames": [job.name],
        "verbs": ["patch"],
    }
    return manifest("Role", job, controller_name(job), "controller", rules=[rule])


def _role_binding(job: Job) -> dict[str, Any]:
    """Gives that right to that identity."""
    name = controller_name(job)
    return manifest(
        "RoleBinding",
        job,
        name,
        "controller",
        roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        subjects=[{"kind": "ServiceAccount", "name": name, "namespace": job.namespace}],
    )


def _service(job: Job, role: RoleName) -> dict[str, Any]:
    """The service that gives each pod of the role its host name.

    Pods find each other before any of them is ready, so addresses that are not ready are
    published as well.
    """
    return manifest(
        "Service",
        job,
        workload_name(job.name, role),
        role,
        spec={
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": selector(job, role),
            "ports": [{"name": "health", "port": contract.PORT_HEALTH, "protocol": "TCP"}],
        },
    )


def _stateful_set(job: Job, role: RoleTopology, template: Manifest) -> dict[str, Any]:
    """The pods of a role.

    Parallel: ranks wait for each other, so pods must not. OnDelete: a changed template restarts
    nothing by itself.
    """
    name = workload_name(job.name, role.role)
    rendered = manifest(
        "StatefulSet",
        job,
        name,
        role.role,
        spec={
            "replicas": len(role.pods),
            "serviceName": name,
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "revisionHistoryLimit": 1,
            "selector": {"matchLabels": selector(job, role.role)},
            "template": template,
        },
    )
    rendered["metadata"]["annotations"] = {
        ANNOTATION_GENERATION: str(job.generation),
        ANNOTATION_TEMPLATE: digest(rendered["spec"]),
    }
    return rendered
