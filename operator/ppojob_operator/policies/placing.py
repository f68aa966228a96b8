"""Admission of a job's pods, by Kueue, Volcano or the gang scheduler. Pure.

Kueue admits before there are pods; Volcano and Kubernetes' own gangs place existing pods, all of
them or none; `none` has no admission.

Two jobs that each hold half of the GPUs would deadlock. So a job that was not placed as a whole
within its deadline releases what it has, and retries after the same time.
"""

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ppojob_api.v1alpha1.scheduling import KueueSpec
from ppojob_operator.build import kueue
from ppojob_operator.build.gang import GANGS, Gang
from ppojob_operator.conditions import ObservedCondition, condition, from_rfc3339, inert
from ppojob_operator.kinds import GANG_KINDS
from ppojob_operator.state import Child, GangFacts, Job, Observed, Placement, Time

GAVE_BACK = "GaveBack"
NOT_ASKED = frozenset({"GangUnavailable", "FlavorMissing", "ObjectRefused"})
"""Reasons of Admitted that are none of the queue's. What cannot be asked has taken nothing back:
pods that are there stay."""


@dataclass(frozen=True, slots=True)
class Admission:
    """Whether a job may take resources.

    Attributes:
        claim: the condition Admitted.
        may_have_pods: whether pods are made; a scheduler of gangs admits pods that are there.
        placements: what the queue adds to the pods of each role, by its slug.
        again_in: seconds until time alone may change it.
    """

    claim: ObservedCondition
    may_have_pods: bool
    placements: Mapping[str, Placement] = field(default_factory=dict)
    again_in: float | None = None


def admission(job: Job, observed: Observed, now: Time) -> Admission:
    """Whether the job may take resources."""
    asked, scheduling = _placing(job, observed), job.scheduling
    if scheduling.start_deadline_seconds is None:
        return asked
    limit = datetime.timedelta(seconds=scheduling.start_deadline_seconds)
    was = condition(job.status, "Admitted")
    if was is not None and was.reason == GAVE_BACK:
        left = (from_rfc3339(was.last_transition_time) + limit - now).total_seconds()
        if left > 0 or observed.pods:
            return _not_admitted(GAVE_BACK, was.message, again_in=max(left, 1.0))
        return asked
    ready = condition(job.status, "PodsReady")
    unplaced = [pod.unschedulable for pod in observed.pods if pod.unschedulable]
    placed = sum(bool(pod.node) for pod in observed.pods)
    # Kueue's quota counts as much as places of pods.
    is_short = asked.claim.holds and unplaced and (placed or scheduling.type == "kueue")
    if ready is None or ready.status == "True" or not is_short:
        return asked
    # From when it lacked pods, so a job that has trained for days gets the whole time as well; but
    # never from before this attempt: without pods it was queued, suspended, or had given back.
    started = from_rfc3339(job.status.start_time) if job.status.start_time else now
    since = max(started, from_rfc3339(ready.last_transition_time))
    left = (since + limit - now).total_seconds()
    if left > 0:
        return replace(asked, again_in=left)
    words = (
        f"{placed} of {len(observed.pods)} pods had a place after"
        f" {scheduling.start_deadline_seconds} s; tried again after as long: {unplaced[0]}"
    )
    return _not_admitted(GAVE_BACK, words, again_in=limit.total_seconds())


def _placing(job: Job, observed: Observed) -> Admission:
    """What the one who places the pods says."""
    gang = GANGS.get(job.scheduling.type)
    if gang is None:
        claim = ObservedCondition("Admitted", True, "NoQueue", "no queue is asked for")
        return Admission(claim, may_have_pods=True)
    if not observed.gangs.served.issuperset(gang.kinds):
        words = _how_to_get(job.scheduling.type, gang)
        return _not_admitted("GangUnavailable", words, may_have_pods=bool(observed.pods))
    for (kind, name), why in observed.refused.items():
        if kind in gang.kinds:
            words = f"{kind} {name}: {why}"
            return _not_admitted("ObjectRefused", words, may_have_pods=bool(observed.pods))
    if job.scheduling.type == "kueue":
        return _of_kueue(job, job.scheduling.kueue, observed)
    return _of_scheduler(gang, observed)


def _not_admitted(
    reason: str, words: str, *, may_have_pods: bool = False, again_in: float | None = None
) -> Admission:
    claim = ObservedCondition("Admitted", False, reason, words)
    return Admission(claim, may_have_pods, again_in=again_in)


def _how_to_get(name: str, gang: Gang) -> str:
    kinds = ", ".join(
        f"{GANG_KINDS[one].plural} of {GANG_KINDS[one].api_version}" for one in gang.kinds
    )
    return (
        f"spec.scheduling.type: {name}: the operator cannot read {kinds}; install {gang.provider},"
        f" and set gangs.{name}: true in the values of the operator's chart"
    )


def _of_kueue(job: Job, spec: KueueSpec | None, observed: Observed) -> Admission:
    """The answer in the Workload, which outlives a spec that was accepted."""
    wanted = spec.priority_class_name if spec is not None else None
    if wanted is not None and wanted not in observed.gangs.priorities and not observed.pods:
        words = f"no WorkloadPriorityClass {wanted}"
        return _not_admitted("PriorityClassMissing", words)
    child = kueue.own_workload(job, observed)
    if child is None:
        return _not_admitted("Queued", "it has no Workload yet, or no longer")
    answer = kueue.answer(child)
    if not answer.holds("Admitted") or answer.holds("Evicted"):
        return Admission(_why_not(answer, child.manifest["spec"]["queueName"]), False)
    flavors = {flavor for flavors in answer.flavors.values() for flavor in flavors}
    missing = sorted(flavors - observed.gangs.flavors.keys())
    if missing:
        words = f"no ResourceFlavor {', '.join(missing)}, to which it was admitted"
        return _not_admitted("FlavorMissing", words, may_have_pods=bool(observed.pods))
    words = f"by ClusterQueue {answer.cluster_queue}"
    claim = ObservedCondition("Admitted", True, "Admitted", words)
    return Admission(claim, True, _placements(answer, observed.gangs))


def _why_not(answer: kueue.Answer, queue: str) -> ObservedCondition:
    """The words of the queue: of an eviction, a check that is not passed, or want of quota."""
    if answer.holds("Evicted"):
        said = answer.conditions["Evicted"]
    elif answer.holds("QuotaReserved"):
        words = "; ".join(answer.waits_for) or "quota is reserved; it is not admitted yet"
        return ObservedCondition("Admitted", False, "AdmissionChecks", inert(words))
    elif "QuotaReserved" in answer.conditions:
        said = answer.conditions["QuotaReserved"]
    else:
        return ObservedCondition("Admitted", False, "Queued", f"in LocalQueue {queue}")
    return ObservedCondition("Admitted", False, said.reason, inert(said.message))


def _placements(answer: kueue.Answer, facts: GangFacts) -> dict[str, Placement]:
    """What flavors and admission checks add to each role's pods."""
    return {
        slug: _joined((*(facts.flavors[name] for name in flavors), *answer.updates.get(slug, ())))
        for slug, flavors in answer.flavors.items()
    }


def _joined(parts: tuple[Placement, ...]) -> Placement:
    return Placement(
        node_selector={key: value for one in parts for key, value in one.node_selector.items()},
        tolerations=tuple(toleration for one in parts for toleration in one.tolerations),
        labels={key: value for one in parts for key, value in one.labels.items()},
        annotations={key: value for one in parts for key, value in one.annotations.items()},
    )


def _of_scheduler(gang: Gang, observed: Observed) -> Admission:
    """A scheduler of gangs places no pod of a gang before it has places for all of them."""
    if any(pod.node for pod in observed.pods):
        return Admission(ObservedCondition("Admitted", True, "Placed", "all pods together"), True)
    group = next(
        (child for (kind, _), child in observed.children.items() if kind == gang.kinds[-1]), None
    )
    words = _words(group) if group else "its PodGroup is not made yet"
    return _not_admitted("GangWaits", words, may_have_pods=True)


def _words(group: Child) -> str:
    """What the scheduler has written into the PodGroup, the last condition first."""
    status = group.manifest.get("status") or {}
    said = [
        f"{one.get('reason', '')}: {one.get('message', '')}"
        for one in sorted(
            status.get("conditions") or (), key=lambda one: one.get("lastTransitionTime", "")
        )
    ]
    return inert(said[-1]) if said else "not looked at by the scheduler yet"
