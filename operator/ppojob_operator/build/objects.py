"""All objects of a job, in the order in which they must be there. Pure."""

from typing import Any

from ppojob_api.topology import RoleTopology
from ppojob_api.v1alpha1.pod_settings import PodSettings, settings_of
from ppojob_api.well_known import RoleName
from ppojob_operator.build import access, protection
from ppojob_operator.build.config_map import PodConfig, config_map
from ppojob_operator.build.gang import ALONE, Membership
from ppojob_operator.build.keys import secret_template
from ppojob_operator.build.pod_template import Defaults, pod_template
from ppojob_operator.build.service import service
from ppojob_operator.build.stateful_set import stateful_set
from ppojob_operator.state import Job, Manifest


def surroundings(job: Job, config: PodConfig) -> list[dict[str, Any]]:
    """What must be there before the first pod, Secrets aside."""
    roles = [role.role for role in config.run.topology.with_own_pods]
    return [
        config_map(job, config),
        access.service_account(job),
        access.role(job),
        *protection.network_policies(job, roles, config.run.spec.agent),
        protection.disruption_budget(job),
        *(service(job, role) for role in roles),
    ]


def bindings(job: Job) -> list[dict[str, Any]]:
    """What the API server takes when it knows of the Role, shortly after that was made."""
    return [access.role_binding(job)]


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
    defaults: Defaults,
    membership: Membership = ALONE,
) -> list[dict[str, Any]]:
    """The StatefulSets of some roles, whose pods belong to the gang of the job."""
    templates = (
        pod_template(job, config, role, settings_of(settings, role.role), defaults)
        for role in roles
    )
    return [
        stateful_set(job, role, membership.member(job, role.role, template))
        for role, template in zip(roles, templates, strict=True)
    ]
