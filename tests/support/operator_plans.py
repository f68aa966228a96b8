"""What is planned for a job of three roles and four pods, for tests of the operator."""

import datetime
from typing import Any

from operator_jobs import CHILDREN, CONFIG_DIGEST, NOW, SETTINGS, UID, observed

from ppojob_api.v1alpha1.status import Condition, PPOJobStatus
from ppojob_api.well_known import RoleName, workload_name
from ppojob_operator.conditions import ConditionType, condition
from ppojob_operator.plan import plan
from ppojob_operator.state import Create, Delete, Job, Manifest, Observed, Plan, Pod, RecordEvent

_ROLES: dict[str, RoleName] = {
    "sum-actor-rollout-0": "actorRollout",
    "sum-controller-0": "controller",
    "sum-reward-0": "reward",
    "sum-reward-1": "reward",
}
NOTHING = Observed()


def pod(name: str, **fields: Any) -> Pod:
    role = _ROLES[name]
    owner = CHILDREN["StatefulSet", workload_name("sum", role)].uid
    created = NOW - datetime.timedelta(seconds=5)
    known = {"uid": f"uid-{name}", "config_digest": CONFIG_DIGEST, "owner_uid": owner}
    return Pod(
        namespace="lab", name=name, job_uid=UID, role=role, created=created, **known | fields
    )


def all_pods(**fields: Any) -> tuple[Pod, ...]:
    """The pods of the job that `make_job` makes."""
    return tuple(pod(name, **fields) for name in _ROLES)


READY = all_pods(is_ready=True)
UP = observed(pods=READY)


def look(job: Job, seen: Observed = NOTHING, seconds: float = 0.0) -> Plan:
    """What is planned for a job, so long after `NOW`: whoever plans twice plans the same."""
    planned, again = (
        plan(job, seen, SETTINGS, NOW + datetime.timedelta(seconds=seconds)) for _ in range(2)
    )
    assert planned == again
    return planned


def status_of(job: Job, seen: Observed = NOTHING, seconds: float = 0.0) -> PPOJobStatus:
    return look(job, seen, seconds).status or job.status


def status_after(planned: Plan) -> PPOJobStatus:
    assert planned.status is not None
    return planned.status


def claim(status: PPOJobStatus, name: ConditionType) -> Condition:
    found = condition(status, name)
    assert found is not None
    return found


def actions(planned: Plan, kind: type = object) -> list[Any]:
    """What a plan does, in its order; of one kind, or all."""
    return [one for wave in planned.waves for one in wave if isinstance(one, kind)]


def kinds(planned: Plan) -> list[str]:
    return [_kind(one) for one in actions(planned)]


def _kind(one: Any) -> str:
    if isinstance(one, Create):
        return f"Create {one.manifest['kind']}"
    is_of_pod = isinstance(one, Delete) and one.kind == "Pod"
    return "DeletePod" if is_of_pod else type(one).__name__


def made(planned: Plan, kind: str) -> list[Manifest]:
    return [one.manifest for one in actions(planned, Create) if one.manifest["kind"] == kind]


def deleted(planned: Plan) -> list[str]:
    """The objects that a plan deletes, without pods."""
    return [one.name for one in actions(planned, Delete) if one.kind != "Pod"]


def deleted_pods(planned: Plan) -> list[Delete]:
    return [one for one in actions(planned, Delete) if one.kind == "Pod"]


def told(planned: Plan) -> list[str]:
    return [one.reason for one in actions(planned, RecordEvent)]
