"""Reconcile plan of a job: (job, observed, settings, now) -> Plan. Pure: no clock, no client.

Level-triggered: the plan follows from the observed state, never from past events. So planning is
idempotent, and a partly executed plan is planned again.
"""

from dataclasses import replace

from ppojob_api.problem import ABSENT, Problem, ReasonCode, shown
from ppojob_api.v1alpha1.job import PPOJob
from ppojob_api.well_known import KIND
from ppojob_operator.changes import changes, written_objects
from ppojob_operator.conditions import (
    ObservedCondition,
    acceptance,
    condition,
    rfc3339,
    set_conditions,
)
from ppojob_operator.policies.ending import (
    crashed_pods,
    deadline_in,
    expiry_in,
    pods_on_unreachable_nodes,
)
from ppojob_operator.policies.pods_ready import MISSING_SECONDS, missing_pods
from ppojob_operator.reconcile_context import ReconcileContext
from ppojob_operator.report import events, status_of
from ppojob_operator.settings import Settings
from ppojob_operator.state import Action, Delete, Job, Observed, Plan, RecordEvent, Time


def plan(job: Job, observed: Observed, settings: Settings, now: Time) -> Plan:
    """Plan what to do for a job now."""
    if job.is_deleting:
        # The garbage collector deletes its objects.
        return Plan()
    expiry = expiry_in(job, observed, now)
    if expiry is not None and expiry <= 0:
        return Plan(waves=((Delete(KIND, job.name, job.uid),),))
    problems = job.problems or (cluster_problems(job.validated, settings) if job.validated else ())
    accepted = acceptance(problems)
    if problems and condition(job.status, "Admitted") is None:
        return _refusal(job, accepted, now, expiry)
    ctx = ReconcileContext(job, None if problems else job.validated, accepted, observed, now)
    image = job.status.image or settings.trainer_image
    deletions = (
        *pods_on_unreachable_nodes(observed, settings.node_silence_seconds, now),
        *crashed_pods(observed.pods, job.status, now),
    )
    waves = changes(ctx, replace(settings, trainer_image=image))
    # Refusals of objects that are no longer desired are outdated.
    desired = written_objects(waves)
    refused = {one: why for one, why in observed.refused.items() if one in desired}
    status = status_of(ctx, image, refused)
    last: tuple[Action, ...] = (
        *(deletion for deletion, left in deletions if left <= 0),
        *events(ctx, status),
    )
    return Plan(
        waves=tuple(wave for wave in (*waves, last) if wave),
        status=status if status != job.status else None,
        requeue_after=_requeue_after(
            ctx, settings, expiry, *(left for _, left in deletions if left > 0)
        ),
    )


def _requeue_after(ctx: ReconcileContext, settings: Settings, *waits: float | None) -> float | None:
    candidates = [*waits, ctx.admission.requeue_after]
    if ctx.ending is None:
        candidates.append(deadline_in(ctx.job, ctx.now))
        if missing_pods(ctx.desired, ctx.observed):
            candidates.append(MISSING_SECONDS)
        if any(pod.waiting_reason == "ContainerCreating" for pod in ctx.observed.pods):
            candidates.append(settings.node_silence_seconds)
    times = [max(0.0, seconds) for seconds in candidates if seconds is not None]
    return min(times, default=None)


def cluster_problems(job: PPOJob, settings: Settings) -> tuple[Problem, ...]:
    """Check what a job needs only on a cluster."""
    found = []
    if job.spec.checkpoint.volume is None:
        where, why = "spec.checkpoint.volume", "the pods share the run folder on a volume"
        allowed = (
            "{size: 100Gi} for a claim that the operator creates, or {claimName: NAME} of one that "
            "all pods can mount"
        )
        found.append(Problem(where, ABSENT, why, allowed, ReasonCode.REQUIRED))
    containers = job.spec.agent.containers if job.spec.agent is not None else None
    if containers is not None and not settings.row_containers_role:
        where, got = "spec.agent.containers", shown(containers.model_dump(exclude_unset=True))
        why = "this operator may not give tools pods the right to create pods"
        allowed = (
            "remove it, or have the chart's values rowContainers.enabled and "
            "admissionPolicy.enabled set"
        )
        found.append(Problem(where, got, why, allowed, ReasonCode.FORBIDDEN))
    return tuple(found)


def _refusal(job: Job, accepted: ObservedCondition, now: Time, expiry: float | None) -> Plan:
    """Status of an invalid job without any object, with the lines of `ppojob validate`.

    It has failed, unless a newer operator may accept it. A failed job stays failed.
    """
    reason, message = accepted.reason, accepted.message
    conditions = {one.type: one for one in job.status.conditions}
    has_failed = "Failed" in conditions
    is_over = accepted.holds is False and not has_failed
    failed = [ObservedCondition("Failed", True, reason, message)] if is_over else []
    changed = set_conditions(job.status.conditions, (accepted, *failed), job.generation, now)
    conditions |= {one.type: one for one in changed}
    update: dict[str, object] = {
        "observed_generation": job.generation,
        "conditions": tuple(conditions.values()),
    }
    if not has_failed:
        update |= {"reason": reason, "message": message}
    if is_over:
        update |= {"phase": "Failed", "finish_time": job.status.finish_time or rfc3339(now)}
    status = job.status.model_copy(update=update)
    if status == job.status:
        return Plan(requeue_after=expiry)
    return Plan(waves=((RecordEvent("Warning", reason, message),),), status=status)
