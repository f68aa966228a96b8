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
    inert,
    rfc3339,
    set_conditions,
)
from ppojob_operator.policies.ending import ended, losses, new_ends, trim_records
from ppojob_operator.policies.startup import pods_ready
from ppojob_operator.reconcile_context import ReconcileContext
from ppojob_operator.state import Emit, Refusals

_EVENTS_WHEN_TRUE: dict[ConditionType, str] = {
    "PodsReady": "all pods are ready",
    "Training": "training has started",
    "Suspended": "all pods are deleted",
}

_WITHOUT_EVENT = ("PodsTerminating", "PodsMissing", "Starting", "Stopped")
"""Reasons of PodsReady that occur in every job."""


def status_of(here: ReconcileContext, image: str, refused: Refusals) -> PPOJobStatus:
    """The new status; equal to the previous one if nothing has changed."""
    before = here.job.status
    conditions = _conditions(here, refused)
    roles = tuple(_role_status(here, before))
    phase, main = _phase(here, conditions), _main_condition(conditions)
    return before.model_copy(
        update={
            "observed_generation": here.job.generation,
            "phase": phase,
            "reason": main.reason,
            "message": inert(main.message),
            "conditions": set_conditions(
                before.conditions, conditions, here.job.generation, here.now
            ),
            "roles": roles,
            "restarts": before.restarts + sum(_restarts(here, role) for role in here.roles),
            "failures": trim_records((*before.failures, *here.failures)),
            "image": image if here.desired or here.observed.pods else "",
            "start_time": _start_time(here, phase),
            "finish_time": before.finish_time or (rfc3339(here.now) if here.ending else None),
        }
    )


def events(here: ReconcileContext, after: PPOJobStatus) -> Iterator[Emit]:
    """Events for changes of conditions and for container failures."""
    before = here.job.status
    was, now = condition(before, "Accepted"), here.accepted
    if not now.holds and (was is None or (was.reason, was.message) != (now.reason, now.message)):
        yield Emit("Warning", now.reason, now.message)
    for name, words in _EVENTS_WHEN_TRUE.items():
        if holds(after, name) and not holds(before, name):
            yield Emit("Normal", name, words)
    if holds(after, "Complete") and not holds(before, "Complete"):
        yield Emit("Normal", after.reason, after.message)
    if holds(after, "Failed") and not holds(before, "Failed"):
        yield Emit("Warning", after.reason, after.message)
    yield from _layout_events(here)
    yield from _admission_events(here)
    were, are = condition(before, "PodsReady"), condition(after, "PodsReady")
    if are and are.status == "False" and are.reason not in {were and were.reason, *_WITHOUT_EVENT}:
        yield Emit("Warning", are.reason, are.message)
    for record in here.failures:
        what = f"{record.role}: pod {record.pod}: container terminated: {record.reason}"
        yield Emit("Warning", "ContainerEnded", inert(f"{what}: {record.message}"))


def _layout_events(here: ReconcileContext) -> Iterator[Emit]:
    """The roles have other numbers of pods than in the status."""
    were = {role.name: role.replicas for role in here.job.status.roles}
    are = {role: len(names) for role, names in here.roles.items()}
    if were and were != are:
        new, old = (
            ", ".join(f"{role} {number}" for role, number in pods.items()) for pods in (are, were)
        )
        yield Emit("Normal", "LayoutChanged", f"new pods: {new}; previous pods: {old}")


def _admission_events(here: ReconcileContext) -> Iterator[Emit]:
    """Once per reason: the messages of a queue change often."""
    was, now = condition(here.job.status, "Admitted"), here.admission.admitted
    if not now.holds and (was is None or was.reason != now.reason):
        yield Emit("Warning", now.reason, now.message)
    if now.holds and was is not None and was.status == "False":
        yield Emit("Normal", now.reason, now.message)


def _conditions(here: ReconcileContext, refused: Refusals) -> tuple[ObservedCondition, ...]:
    return (
        here.accepted,
        here.admission.admitted,
        _pods_ready(here, refused),
        _rendezvoused(here),
        _training(here),
        _checkpointed(here),
        _suspended(here),
        _ended(here, "Complete", "Succeeded"),
        _ended(here, "Failed", "Failed"),
    )


def _pods_ready(here: ReconcileContext, refused: Refusals) -> ObservedCondition:
    if here.ending is not None or here.job.lifecycle.suspend or not here.admission.may_have_pods:
        return ObservedCondition("PodsReady", False, "Stopped", "the job should have no pods")
    if not here.desired or here.has_old_layout:
        which = "pods of the previous layout" if here.has_old_layout else "previous pods"
        message = f"{which} are still terminating"
        return ObservedCondition("PodsReady", False, "PodsTerminating", message)
    if refused:
        (kind, name), why = next(iter(refused.items()))
        return ObservedCondition("PodsReady", False, "ObjectRefused", f"{kind} {name}: {why}")
    started = here.job.status.start_time
    seconds = (here.now - from_rfc3339(started)).total_seconds() if started else 0.0
    return pods_ready(here.roles, here.observed, seconds)


def _rendezvoused(here: ReconcileContext) -> ObservedCondition:
    training = here.job.status.training
    if not here.desired:
        return ObservedCondition("Rendezvoused", False, "Stopped")
    if not _has_controller(here):
        message = "the controller is not running yet"
        return ObservedCondition("Rendezvoused", False, "Waiting", message)
    if training is None or training.stage in {"", "Starting"}:
        message = "the controller is not connected to all ranks yet"
        return ObservedCondition("Rendezvoused", False, "Waiting", message)
    if training.stage == "Recovering":
        return ObservedCondition("Rendezvoused", False, "Recovering", "a role is restarting")
    return ObservedCondition("Rendezvoused", True, "AllRanksConnected")


def _training(here: ReconcileContext) -> ObservedCondition:
    training = here.job.status.training
    if here.ending is not None or not here.desired:
        return ObservedCondition("Training", False, "Stopped")
    is_stepping = training is not None and training.stage in {"Training", "Finishing"}
    if is_stepping and _has_controller(here):
        return ObservedCondition("Training", True, "Stepping")
    return ObservedCondition("Training", False, "Waiting")


def _has_controller(here: ReconcileContext) -> bool:
    """Whether a controller runs; `status.training` may be that of a controller that was killed."""
    report = here.observed.controller
    is_starting = report is not None and report.phase == "starting"
    pods = here.observed.pods_of("controller")
    return not is_starting and any(pod.is_ready and not pod.is_deleting for pod in pods)


def _checkpointed(here: ReconcileContext) -> ObservedCondition:
    training = here.job.status.training
    if training is None or training.last_checkpoint_step is None:
        message = "a restarted job begins at its first step"
        return ObservedCondition("Checkpointed", False, "NoCheckpoint", message)
    message = "status.training.lastCheckpointStep is the step of the last checkpoint"
    return ObservedCondition("Checkpointed", True, "Saved", message)


def _suspended(here: ReconcileContext) -> ObservedCondition:
    if not here.job.lifecycle.suspend or here.ending is not None:
        return ObservedCondition("Suspended", False, "NotSuspended")
    if here.observed.pods:
        message = "the controller writes a checkpoint, then all pods are deleted"
        return ObservedCondition("Suspended", False, "Suspending", message)
    return ObservedCondition("Suspended", True, "JobSuspended", "spec.lifecycle.suspend is true")


def _ended(here: ReconcileContext, name: ConditionType, phase: Phase) -> ObservedCondition:
    if here.ending is None:
        return ObservedCondition(name, False, "NotEnded")
    if here.ending.phase != phase:
        return ObservedCondition(name, False, here.ending.phase)
    return ObservedCondition(name, True, here.ending.reason, here.ending.message)


def _phase(here: ReconcileContext, conditions: tuple[ObservedCondition, ...]) -> Phase:
    true = {one.type for one in conditions if one.holds}
    if here.ending is not None:
        return here.ending.phase
    if "Suspended" in true:
        return "Suspended"
    if here.job.lifecycle.suspend:
        # Its pods are terminating; the phase stays until they are deleted.
        return here.job.status.phase
    if {"PodsReady", "Training"} <= true:
        return "Running"
    if not here.admission.admitted.holds and not here.observed.pods:
        return "Pending"
    if here.step or holds(here.job.status, "Training") or here.job.status.phase == "Recovering":
        return "Recovering"
    return "Starting" if here.desired else "Pending"


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


def _role_status(here: ReconcileContext, before: PPOJobStatus) -> Iterator[RoleStatus]:
    old = {role.name: role for role in before.roles}
    for role, names in here.roles.items():
        was = old.get(role)
        pods = here.observed.pods_of(role)
        lost, step = _losses(here, was, role)
        yield RoleStatus(
            name=role,
            replicas=len(names),
            ready=sum(pod.is_ready and not pod.is_deleting for pod in pods),
            restarts=(was.restarts if was else 0) + _restarts(here, role),
            ended=ended(role, here.observed.pods),
            losses=lost,
            losses_step=step,
        )


def _losses(here: ReconcileContext, was: RoleStatus | None, role: RoleName) -> tuple[int, int]:
    """How often a role was lost without a completed step, and the last completed step then."""
    for record in here.failures:
        if record.role == role and record.kind != "disruption":
            return losses(was, record), record.step
    return (was.losses, was.losses_step) if was else (0, 0)


def _start_time(here: ReconcileContext, phase: Phase) -> str | None:
    """When the job started; like a Kubernetes Job it starts again after a suspension.

    Rescheduled pods, and a queue that cannot be read, are no new start.
    """
    if phase == "Suspended" or not here.admission.may_have_pods:
        return None
    starts = here.admission.admitted.holds and bool(here.desired)
    return here.job.status.start_time or (rfc3339(here.now) if starts else None)


def _restarts(here: ReconcileContext, role: RoleName) -> int:
    """Container failures since the last reconcile, without disruptions."""
    if any(one.role == role and one.kind == "disruption" for one in here.failures):
        return 0
    return new_ends(role, here.observed.pods, here.job.status)
