"""Jobs that are placed by a queue or a scheduler of gangs, for tests of the operator."""

from typing import Any

from operator_jobs import NO_STATUS, UID, make_job
from operator_plans import all_pods, claim, look, made

from ppojob_api.v1alpha1.status import PPOJobStatus
from ppojob_operator import state
from ppojob_operator.build.gang import GANGS

KUEUE: dict[str, Any] = {"type": "kueue", "kueue": {"queueName": "team-a"}}
VOLCANO: dict[str, Any] = {"type": "volcano", "volcano": {"queue": "research"}}
COSCHEDULING: dict[str, Any] = {"type": "coscheduling"}
WORKLOAD: dict[str, Any] = {"type": "workload"}
QUEUED: state.ChildKind = "Workload.kueue.x-k8s.io"
FLAVOR = state.Placement({"gpu": "h200"}, ({"key": "gpu", "operator": "Exists"},))
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


def facts(**fields: Any) -> state.GangFacts:
    """Everything is served, and there is one flavor."""
    served = frozenset(kind for gang in GANGS.values() for kind in gang.kinds)
    return state.GangFacts(**{"served": served, "flavors": {"h200": FLAVOR}, **fields})


def queued_job(status: PPOJobStatus = NO_STATUS, **changes: Any) -> state.Job:
    return make_job(status, **{"scheduling": KUEUE, **changes})


def admission_of(planned: state.Plan, job: state.Job) -> tuple[str, str, str]:
    """Status, reason and message of the condition Admitted."""
    found = claim(planned.status or job.status, "Admitted")
    return found.status, found.reason, found.message


def child(manifest: state.Manifest, kind: state.ChildKind = QUEUED) -> state.Child:
    """An object of the job as the operator knows it."""
    return state.Child(kind, manifest["metadata"]["name"], "uid-gang", UID, False, manifest)


def answered(job: state.Job, *conditions: tuple[str, str, str, str], **status: Any) -> state.Child:
    """The job's Workload with what Kueue has written into it."""
    (workload,) = made(look(job, seen()), "Workload")
    told = [
        {"type": name, "status": value, "reason": reason, "message": message}
        | {"lastTransitionTime": "2026-01-02T03:00:00Z"}
        for name, value, reason, message in conditions
    ]
    return child({**workload, "status": {"conditions": told, **status}})


def admitted(job: state.Job, *more: tuple[str, str, str, str], **status: Any) -> state.Child:
    return answered(job, RESERVED, ADMITTED, *more, admission=ADMISSION, **status)


def seen(*children: state.Child, pods: tuple[state.Pod, ...] = (), **fields: Any) -> state.Observed:
    """What is there, where everything is served."""
    by_name = {(one.kind, one.name): one for one in children}
    return state.Observed(**{"children": by_name, "pods": pods, "gangs": facts(), **fields})


def four_pods(**fields: Any) -> tuple[state.Pod, ...]:
    """The pods of the job, which no StatefulSet owns."""
    return all_pods(owner_uid="", **fields)


FOUR_READY = four_pods(is_ready=True)
