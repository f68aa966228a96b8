"""Admission of a job's pods by Kueue or a gang scheduler. Pure.

Kueue admits a job before its pods exist. Gang schedulers schedule existing pods, all of them or
none. `type: none` has no admission.

Two jobs that each hold half of the GPUs would deadlock. So a job whose pods are not all scheduled
within its start deadline deletes them, and tries again after the same time.
"""

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ppojob_api.v1alpha1.scheduling import KueueSpec
from ppojob_operator.build import kueue
from ppojob_operator.build.gang import GANGS, Gang
from ppojob_operator.conditions import ObservedCondition, condition, from_rfc3339, sanitized
from ppojob_operator.kinds import GANG_KINDS
from ppojob_operator.state import Child, GangFacts, Job, Observed, Placement, Time

START_DEADLINE_EXCEEDED = "StartDeadlineExceeded"
NOT_FROM_QUEUE = frozenset({"GangUnavailable", "FlavorMissing", "ObjectRefused"})
"""Reasons of Admitted that do not come from the queue, so that existing pods stay."""


@dataclass(frozen=True, slots=True)
class Admission:
    """Whether a job may use resources."""

    admitted: ObservedCondition
    may_have_pods: bool  # whether pods are created; gang schedulers need existing pods
    # What the queue adds to the pods of each role, by its slug: node selector, tolerations, labels,
    # annotations, scheduling gates.
    placements: Mapping[str, Placement] = field(default_factory=dict)
    requeue_after: float | None = None  # seconds after which it may change without an event


def admission(job: Job, observed: Observed, now: Time) -> Admission:
    """Whether the job may use resources."""
    current, scheduling = _without_deadline(job, observed), job.scheduling
    if scheduling.start_deadline_seconds is None:
        return current
    limit = datetime.timedelta(seconds=scheduling.start_deadline_seconds)
    was = condition(job.status, "Admitted")
    if was is not None and was.reason == START_DEADLINE_EXCEEDED:
        left = (from_rfc3339(was.last_transition_time) + limit - now).total_seconds()
        if left > 0 or observed.pods:
            return _not_admitted(was.reason, was.message, requeue_after=max(left, 1.0))
        return current
    ready = condition(job.status, "PodsReady")
    unschedulable = [pod.unschedulable for pod in observed.pods if pod.unschedulable]
    scheduled = sum(bool(pod.node) for pod in observed.pods)
    # A quota of Kueue is held like a node.
    holds_some = current.admitted.holds and (scheduled or scheduling.type == "kueue")
    if ready is None or ready.status == "True" or not (holds_some and unschedulable):
        return current
    # The deadline counts from when pods were last ready, so that a job that has trained for days
    # gets the whole time too, but not from before this attempt.
    started = from_rfc3339(job.status.start_time) if job.status.start_time else now
    since = max(started, from_rfc3339(ready.last_transition_time))
    left = (since + limit - now).total_seconds()
    if left > 0:
        return replace(current, requeue_after=left)
    seconds = scheduling.start_deadline_seconds
    message = (
        f"only {scheduled} of {len(observed.pods)} pods were scheduled within {seconds} s, so all"
        f" are deleted and created again after {seconds} s: {unschedulable[0]}"
    )
    return _not_admitted(START_DEADLINE_EXCEEDED, message, requeue_after=float(seconds))


def _without_deadline(job: Job, observed: Observed) -> Admission:
    """The admission by `spec.scheduling.type`."""
    gang = GANGS.get(job.scheduling.type)
    if gang is None:
        admitted = ObservedCondition("Admitted", True, "NoQueue", "spec.scheduling.type is none")
        return Admission(admitted, may_have_pods=True)
    if not observed.gangs.served.issuperset(gang.kinds):
        message = _how_to_install(job.scheduling.type, gang)
        return _not_admitted("GangUnavailable", message, may_have_pods=bool(observed.pods))
    for (kind, name), why in observed.refused.items():
        if kind in gang.kinds:
            message = f"{kind} {name}: {why}"
            return _not_admitted("ObjectRefused", message, may_have_pods=bool(observed.pods))
    if job.scheduling.type == "kueue":
        return _of_kueue(job, job.scheduling.kueue, observed)
    return _of_scheduler(gang, observed)


def _not_admitted(
    reason: str, message: str, *, may_have_pods: bool = False, requeue_after: float | None = None
) -> Admission:
    admitted = ObservedCondition("Admitted", False, reason, message)
    return Admission(admitted, may_have_pods, requeue_after=requeue_after)


def _how_to_install(name: str, gang: Gang) -> str:
    kinds = ", ".join(
        f"{GANG_KINDS[one].plural} of {GANG_KINDS[one].api_version}" for one in gang.kinds
    )
    return (
        f"spec.scheduling.type: {name}: the operator cannot read {kinds}; install {gang.provider},"
        f" and set gangs.{name}: true in the values of the operator's chart"
    )


def _of_kueue(job: Job, spec: KueueSpec | None, observed: Observed) -> Admission:
    """The answer in the Workload; `spec` is None if the job is invalid now."""
    wanted = spec.priority_class_name if spec is not None else None
    if wanted is not None and wanted not in observed.gangs.priorities and not observed.pods:
        message = f"WorkloadPriorityClass {wanted} does not exist"
        return _not_admitted("PriorityClassMissing", message)
    child = kueue.own_workload(job, observed)
    if child is None:
        return _not_admitted("Queued", "the Workload does not exist yet")
    answer = kueue.answer(child)
    if not answer.holds("Admitted") or answer.holds("Evicted"):
        return Admission(_why_not(answer, child.manifest["spec"]["queueName"]), False)
    flavors = {flavor for flavors in answer.flavors.values() for flavor in flavors}
    missing = sorted(flavors - observed.gangs.flavors.keys())
    if missing:
        message = f"it is admitted to ResourceFlavor {', '.join(missing)}, which does not exist"
        return _not_admitted("FlavorMissing", message, may_have_pods=bool(observed.pods))
    message = f"admitted by ClusterQueue {answer.cluster_queue}"
    admitted = ObservedCondition("Admitted", True, "Admitted", message)
    return Admission(admitted, True, _placements(answer, observed.gangs))


def _why_not(answer: kueue.Answer, queue: str) -> ObservedCondition:
    """Kueue's message: of an eviction, of pending admission checks, or of missing quota."""
    if answer.holds("Evicted"):
        found = answer.conditions["Evicted"]
    elif answer.holds("QuotaReserved"):
        message = "; ".join(answer.waits_for) or "quota is reserved; it is not admitted yet"
        return ObservedCondition("Admitted", False, "AdmissionChecks", sanitized(message))
    elif "QuotaReserved" in answer.conditions:
        found = answer.conditions["QuotaReserved"]
    else:
        return ObservedCondition("Admitted", False, "Queued", f"waits in LocalQueue {queue}")
    return ObservedCondition("Admitted", False, found.reason, sanitized(found.message))


def _placements(answer: kueue.Answer, facts: GangFacts) -> dict[str, Placement]:
    """What flavors, topologies and admission checks add to each role's pods."""
    return {
        slug: _joined((*(facts.flavors[name] for name in flavors), *answer.updates.get(slug, ())))
        for slug, flavors in answer.flavors.items()
    }


def _joined(parts: tuple[Placement, ...]) -> Placement:
    return Placement(
        node_selector={key: value for part in parts for key, value in part.node_selector.items()},
        tolerations=tuple(toleration for part in parts for toleration in part.tolerations),
        labels={key: value for part in parts for key, value in part.labels.items()},
        annotations={key: value for part in parts for key, value in part.annotations.items()},
        gates=tuple(gate for part in parts for gate in part.gates),
    )


def _of_scheduler(gang: Gang, observed: Observed) -> Admission:
    """A gang scheduler schedules no pod before it has nodes for all of them."""
    if any(pod.node for pod in observed.pods):
        message = "all pods were scheduled together"
        return Admission(ObservedCondition("Admitted", True, "Placed", message), True)
    groups = observed.children_of(gang.kinds[-1])
    message = _last_message(groups[0], observed) if groups else "the PodGroup does not exist yet"
    return _not_admitted("GangPending", message, may_have_pods=True)


def _last_message(group: Child, observed: Observed) -> str:
    """The scheduler's last condition of the PodGroup, or why it schedules no pod."""
    status = group.manifest.get("status") or {}
    conditions = [
        f"{one.get('reason', '')}: {one.get('message', '')}"
        for one in sorted(
            status.get("conditions") or (), key=lambda one: one.get("lastTransitionTime", "")
        )
    ]
    pods = dict.fromkeys(pod.unschedulable for pod in observed.pods if pod.unschedulable)
    message = conditions[-1] if conditions else "; ".join(pods)
    return sanitized(message) or "the scheduler has not seen the PodGroup yet"
