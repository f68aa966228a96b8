"""Status of a job, and the Events for its changes. Pure."""

from collections.abc import Iterator

from ppojob_api.v1alpha1.status import Phase, PPOJobStatus, RoleStatus
from ppojob_api.well_known import RoleName
from ppojob_operator.conditions import (
    ConditionType,
    ObservedCondition,
    condition,
    from_rfc3339,
    holds,
    rfc3339,
    sanitized,
    set_conditions,
)
from ppojob_operator.policies.ending import ended, losses, new_ends, trim_records
from ppojob_operator.policies.pods_ready import pods_ready
from ppojob_operator.reconcile_context import ReconcileContext
from ppojob_operator.state import RecordEvent, Refusals

_EVENTS_WHEN_TRUE: dict[ConditionType, str] = {
    "PodsReady": "all pods are ready",
    "Training": "training has started",
    "Suspended": "all pods are deleted",
}

_WITHOUT_EVENT = ("PodsTerminating", "PodsMissing", "Starting", "Stopped")
"""Reasons of PodsReady that occur in every job."""


def status_of(ctx: ReconcileContext, image: str, refused: Refusals) -> PPOJobStatus:
    """The new status; equal to the previous one if nothing has changed."""
    before = ctx.job.status
    conditions = _conditions(ctx, refused)
    roles = tuple(_role_status(ctx, before))
    phase, main = _phase(ctx, conditions), _main_condition(conditions)
    return before.model_copy(
        update={
            "observed_generation": ctx.job.generation,
            "phase": phase,
            "reason": main.reason,
            "message": sanitized(main.message),
            "conditions": set_conditions(
                before.conditions, conditions, ctx.job.generation, ctx.now
            ),
            "roles": roles,
            "restarts": before.restarts + sum(_restarts(ctx, role) for role in ctx.roles),
            "failures": trim_records((*before.failures, *ctx.failures)),
            "image": image if ctx.desired or ctx.observed.pods else "",
            "start_time": _start_time(ctx, phase),
            "finish_time": before.finish_time or (rfc3339(ctx.now) if ctx.ending else None),
        }
    )


def events(ctx: ReconcileContext, after: PPOJobStatus) -> Iterator[RecordEvent]:
    """Events for changes of conditions and for container failures."""
    before = ctx.job.status
    was, now = condition(before, "Accepted"), ctx.accepted
    if not now.holds and (was is None or (was.reason, was.message) != (now.reason, now.message)):
        yield RecordEvent("Warning", now.reason, now.message)
    for name, words in _EVENTS_WHEN_TRUE.items():
        if holds(after, name) and not holds(before, name):
            yield RecordEvent("Normal", name, words)
    if holds(after, "Complete") and not holds(before, "Complete"):
        yield RecordEvent("Normal", after.reason, after.message)
    if holds(after, "Failed") and not holds(before, "Failed"):
        yield RecordEvent("Warning", after.reason, after.message)
    yield from _layout_events(ctx)
    yield from _admission_events(ctx)
    were, are = condition(before, "PodsReady"), condition(after, "PodsReady")
    if are and are.status == "False" and are.reason not in {were and were.reason, *_WITHOUT_EVENT}:
        yield RecordEvent("Warning", are.reason, are.message)
    for record in ctx.failures:
        what = f"{record.role}: pod {record.pod}: container terminated: {record.reason}"
        yield RecordEvent("Warning", "ContainerEnded", sanitized(f"{what}: {record.message}"))


def _layout_events(ctx: ReconcileContext) -> Iterator[RecordEvent]:
    """The roles have other numbers of pods than in the status."""
    were = {role.name: role.replicas for role in ctx.job.status.roles}
    are = {role: len(names) for role, names in ctx.roles.items()}
    if were and were != are:
        new, old = (
            ", ".join(f"{role} {number}" for role, number in pods.items()) for pods in (are, were)
        )
        yield RecordEvent("Normal", "LayoutChanged", f"new pods: {new}; previous pods: {old}")


def _admission_events(ctx: ReconcileContext) -> Iterator[RecordEvent]:
    """Once per reason: the messages of a queue change often."""
    was, now = condition(ctx.job.status, "Admitted"), ctx.admission.admitted
    if not now.holds and (was is None or was.reason != now.reason):
        yield RecordEvent("Warning", now.reason, now.message)
    if now.holds and was is not None and was.status == "False":
        yield RecordEvent("Normal", now.reason, now.message)


def _conditions(ctx: ReconcileContext, refused: Refusals) -> tuple[ObservedCondition, ...]:
    return (
        ctx.accepted,
        ctx.admission.admitted,
        _pods_ready(ctx, refused),
        _rendezvoused(ctx),
        _training(ctx),
        _checkpointed(ctx),
        _suspended(ctx),
        _ended(ctx, "Complete", "Succeeded"),
        _ended(ctx, "Failed", "Failed"),
    )


def _pods_ready(ctx: ReconcileContext, refused: Refusals) -> ObservedCondition:
    if ctx.ending is not None or ctx.job.lifecycle.suspend or not ctx.admission.may_have_pods:
        return ObservedCondition("PodsReady", False, "Stopped", "the job should have no pods")
    if not ctx.desired or ctx.has_old_layout:
        which = "pods of the previous layout" if ctx.has_old_layout else "previous pods"
        message = f"{which} are still terminating"
        return ObservedCondition("PodsReady", False, "PodsTerminating", message)
    if refused:
        (kind, name), why = next(iter(refused.items()))
        return ObservedCondition("PodsReady", False, "ObjectRefused", f"{kind} {name}: {why}")
    started = ctx.job.status.start_time
    seconds = (ctx.now - from_rfc3339(started)).total_seconds() if started else 0.0
    return pods_ready(ctx.roles, ctx.observed, seconds)


def _rendezvoused(ctx: ReconcileContext) -> ObservedCondition:
    training = ctx.job.status.training
    if not ctx.desired:
        return ObservedCondition("Rendezvoused", False, "Stopped")
    if not _has_controller(ctx):
        message = "the controller is not running yet"
        return ObservedCondition("Rendezvoused", False, "Waiting", message)
    if training is None or training.stage in {"", "Starting"}:
        message = "the controller is not connected to all ranks yet"
        return ObservedCondition("Rendezvoused", False, "Waiting", message)
    if training.stage == "Recovering":
        return ObservedCondition("Rendezvoused", False, "Recovering", "a role is restarting")
    return ObservedCondition("Rendezvoused", True, "AllRanksConnected")


def _training(ctx: ReconcileContext) -> ObservedCondition:
    training = ctx.job.status.training
    if ctx.ending is not None or not ctx.desired:
        return ObservedCondition("Training", False, "Stopped")
    is_stepping = training is not None and training.stage in {"Training", "Finishing"}
    if is_stepping and _has_controller(ctx):
        return ObservedCondition("Training", True, "Stepping")
    return ObservedCondition("Training", False, "Waiting")


def _has_controller(ctx: ReconcileContext) -> bool:
    """Whether a controller runs; `status.training` may be that of a controller that was killed."""
    report = ctx.observed.controller
    is_starting = report is not None and report.phase == "starting"
    pods = ctx.observed.pods_of("controller")
    return not is_starting and any(pod.is_ready and not pod.is_deleting for pod in pods)


def _checkpointed(ctx: ReconcileContext) -> ObservedCondition:
    training = ctx.job.status.training
    if training is None or training.last_checkpoint_step is None:
        message = "a restarted job begins at its first step"
        return ObservedCondition("Checkpointed", False, "NoCheckpoint", message)
    message = "status.training.lastCheckpointStep is the step of the last checkpoint"
    return ObservedCondition("Checkpointed", True, "Saved", message)


def _suspended(ctx: ReconcileContext) -> ObservedCondition:
    if not ctx.job.lifecycle.suspend or ctx.ending is not None:
        return ObservedCondition("Suspended", False, "NotSuspended")
    if ctx.observed.pods:
        message = "the controller writes a checkpoint, then all pods are deleted"
        return ObservedCondition("Suspended", False, "Suspending", message)
    return ObservedCondition("Suspended", True, "JobSuspended", "spec.lifecycle.suspend is true")


def _ended(ctx: ReconcileContext, name: ConditionType, phase: Phase) -> ObservedCondition:
    if ctx.ending is None:
        return ObservedCondition(name, False, "NotEnded")
    if ctx.ending.phase != phase:
        return ObservedCondition(name, False, ctx.ending.phase)
    return ObservedCondition(name, True, ctx.ending.reason, ctx.ending.message)


def _phase(ctx: ReconcileContext, conditions: tuple[ObservedCondition, ...]) -> Phase:
    true = {one.type for one in conditions if one.holds}
    if ctx.ending is not None:
        return ctx.ending.phase
    if "Suspended" in true:
        return "Suspended"
    if ctx.job.lifecycle.suspend:
        # Its pods are terminating; the phase stays until they are deleted.
        return ctx.job.status.phase
    if {"PodsReady", "Training"} <= true:
        return "Running"
    if not ctx.admission.admitted.holds and not ctx.observed.pods:
        return "Pending"
    if ctx.step or holds(ctx.job.status, "Training") or ctx.job.status.phase == "Recovering":
        return "Recovering"
    return "Starting" if ctx.desired else "Pending"


def _main_condition(conditions: tuple[ObservedCondition, ...]) -> ObservedCondition:
    """The condition that explains the phase best."""
    by_type = {one.type: one for one in conditions}
    for name in ("Failed", "Complete", "Suspended"):
        found = by_type[name]
        if found.holds or found.reason == "Suspending":
            return found
    for found in (by_type["Admitted"], by_type["PodsReady"]):
        if not found.holds:
            return found
    return by_type["Training"] if by_type["Training"].holds else by_type["Rendezvoused"]


def _role_status(ctx: ReconcileContext, before: PPOJobStatus) -> Iterator[RoleStatus]:
    old = {role.name: role for role in before.roles}
    for role, names in ctx.roles.items():
        was = old.get(role)
        pods = ctx.observed.pods_of(role)
        lost, step = _losses(ctx, was, role)
        yield RoleStatus(
            name=role,
            replicas=len(names),
            ready=sum(pod.is_ready and not pod.is_deleting for pod in pods),
            restarts=(was.restarts if was else 0) + _restarts(ctx, role),
            ended=ended(role, ctx.observed.pods),
            losses=lost,
            losses_step=step,
        )


def _losses(ctx: ReconcileContext, was: RoleStatus | None, role: RoleName) -> tuple[int, int]:
    """How often a role was lost without a completed step, and the last completed step then."""
    for record in ctx.failures:
        if record.role == role and record.kind != "disruption":
            return losses(was, record), record.step
    return (was.losses, was.losses_step) if was else (0, 0)


def _start_time(ctx: ReconcileContext, phase: Phase) -> str | None:
    """When the job started; like a Kubernetes Job it starts again after a suspension.

    Rescheduled pods, and a queue that cannot be read, are no new start.
    """
    if phase == "Suspended" or not ctx.admission.may_have_pods:
        return None
    starts = ctx.admission.admitted.holds and bool(ctx.desired)
    return ctx.job.status.start_time or (rfc3339(ctx.now) if starts else None)


def _restarts(ctx: ReconcileContext, role: RoleName) -> int:
    """Container failures since the last reconcile, without disruptions."""
    if any(one.role == role and one.kind == "disruption" for one in ctx.failures):
        return 0
    return new_ends(role, ctx.observed.pods, ctx.job.status)
