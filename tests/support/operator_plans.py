"""Plans for a job of three roles and four pods, and what is in them, for tests of the operator."""

import datetime
from typing import Any

from operator_jobs import CHILDREN, CONFIG_DIGEST, NOW, UID

from ppojob_api.v1alpha1.status import PPOJobStatus
from ppojob_api.well_known import RoleName, workload_name
from ppojob_operator.state import Action, Create, Emit, Plan, Pod


def kinds(planned: Plan) -> list[str]:
    """What the plan does, in its order."""
    return [_kind(action) for wave in planned.waves for action in wave]


def _kind(action: Action) -> str:
    if isinstance(action, Create):
        return f"Create {action.manifest['kind']}"
    return type(action).__name__


def pod(name: str, role: RoleName, **fields: Any) -> Pod:
    """A pod of its StatefulSet."""
    created = NOW - datetime.timedelta(seconds=5)
    owner = CHILDREN["StatefulSet", workload_name("sum", role)].uid
    fields = {"config_digest": CONFIG_DIGEST, "owner_uid": owner, **fields}
    return Pod("lab", name, f"uid-{name}", UID, role, created, **fields)


def all_pods(**fields: Any) -> tuple[Pod, ...]:
    """The pods of the job that `make_job` makes."""
    return (
        pod("sum-actor-rollout-0", "actorRollout", **fields),
        pod("sum-controller-0", "controller", **fields),
        pod("sum-reward-0", "reward", **fields),
        pod("sum-reward-1", "reward", **fields),
    )


def status_after(planned: Plan) -> PPOJobStatus:
    """The status that a plan writes."""
    assert planned.status is not None
    return planned.status


def told(planned: Plan) -> list[str]:
    """Reasons of the events that a plan emits."""
    events = [one for wave in planned.waves for one in wave if isinstance(one, Emit)]
    return [event.reason for event in events]
