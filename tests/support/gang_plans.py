"""Jobs that are placed by a queue or a scheduler of gangs, and plans for them, for tests."""

from typing import Any

from operator_jobs import NOW, SETTINGS, UID, make_job
from operator_plans import pod

from ppojob_api.v1alpha1.status import PPOJobStatus
from ppojob_operator.build.gang import GANGS
from ppojob_operator.conditions import condition
from ppojob_operator.plan import plan
from ppojob_operator.state import (
    Action,
    Child,
    Create,
    GangFacts,
    GangKind,
    Job,
    Manifest,
    Observed,
    Placement,
    Plan,
    Pod,
)

KUEUE: dict[str, Any] = {"type": "kueue", "kueue": {"queueName": "team-a"}}
VOLCANO: dict[str, Any] = {"type": "volcano", "volcano": {"queue": "research"}}
WORKLOAD: dict[str, Any] = {"type": "workload"}
QUEUED: GangKind = "Workload.kueue.x-k8s.io"
FLAVOR = Placement({"gpu": "h200"}, ({"key": "gpu", "operator": "Exists"},))


def facts(**fields: Any) -> GangFacts:
    """Everything is served, and there is one flavor."""
    served = frozenset(kind for gang in GANGS.values() for kind in gang.kinds)
    return GangFacts(**{"served": served, "flavors": {"h200": FLAVOR}, **fields})


def queued_job(status: PPOJobStatus | None = None, **changes: Any) -> Job:
    """A job in a queue of Kueue."""
    return make_job(status, **{"scheduling": KUEUE, **changes})


def looked_at(job: Job, seen: Observed) -> Plan:
    """What is planned for a job."""
    return plan(job, seen, SETTINGS, NOW)


def actions(planned: Plan) -> list[Action]:
    """What a plan does, in its order."""
    return [action for wave in planned.waves for action in wave]


def made(planned: Plan, kind: str) -> list[Manifest]:
    """What of a kind is created."""
    creates = [one.manifest for one in actions(planned) if isinstance(one, Create)]
    return [one for one in creates if one["kind"] == kind]


def admission_of(planned: Plan, job: Job) -> tuple[str, str, str]:
    """Status, reason and message of the condition Admitted."""
    found = condition(planned.status or job.status, "Admitted")
    assert found is not None
    return found.status, found.reason, found.message


def child(manifest: Manifest, kind: GangKind = QUEUED, **fields: Any) -> Child:
    """An object of the job as the operator knows it."""
    name = manifest["metadata"]["name"]
    return Child(kind, name, "uid-gang", UID, False, manifest, **fields)


def answered(job: Job, *conditions: tuple[str, str, str, str], **status: Any) -> Child:
    """The job's Workload with what Kueue has written into it."""
    (workload,) = made(looked_at(job, Observed(gangs=facts())), "Workload")
    told = [
        {"type": name, "status": value, "reason": reason, "message": message}
        | {"lastTransitionTime": "2026-01-02T03:00:00Z"}
        for name, value, reason, message in conditions
    ]
    return child({**workload, "status": {"conditions": told, **status}})


ADMISSION = {
    "clusterQueue": "everybody",
    "podSetAssignments": [
        {"name": "actor-rollout", "flavors": {"cpu": "h200", "nvidia.com/gpu": "h200"}},
        {"name": "controller", "flavors": {}},
        {"name": "reward", "flavors": {"cpu": "h200"}},
    ],
}
RESERVED = ("QuotaReserved", "True", "QuotaReserved", "")
ADMITTED = ("Admitted", "True", "Admitted", "")
EVICTED = ("Evicted", "True", "Preempted", "to make room for sum-2")


def admitted(job: Job, *more: tuple[str, str, str, str], **status: Any) -> Child:
    """The job's Workload when a queue has admitted it."""
    return answered(job, RESERVED, ADMITTED, *more, **{"admission": ADMISSION, **status})


def seen(*children: Child, pods: tuple[Pod, ...] = (), **fields: Any) -> Observed:
    """What is there, where everything is served."""
    by_name = {(one.kind, one.name): one for one in children}
    return Observed(**{"children": by_name, "pods": pods, "gangs": facts(), **fields})


def four_pods(**fields: Any) -> tuple[Pod, ...]:
    """The pods of the job, which no StatefulSet owns."""
    fields = {"owner_uid": "", **fields}
    return (
        pod("sum-actor-rollout-0", "actorRollout", **fields),
        pod("sum-controller-0", "controller", **fields),
        pod("sum-reward-0", "reward", **fields),
        pod("sum-reward-1", "reward", **fields),
    )
