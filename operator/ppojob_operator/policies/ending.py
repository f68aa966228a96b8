"""How a job ends, and what becomes of it then; what the end of a container is a sign of. Pure.

Classes of ends:
    configuration   the same input fails for ever: the job fails at once
    application     our code or the user's ended: the same twice at one step fails the job
    transient       killed, out of memory: started again, after longer and longer waits
    disruption      drained, preempted, evicted: nobody's fault, not counted

Budgets are those of `spec.recovery`: a role that is lost more often than
`restartsWithoutProgress` without a step done in between fails the job.
"""

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ppojob_api import contract
from ppojob_api.v1alpha1.status import FailureKind, FailureRecord, PPOJobStatus, RoleStatus
from ppojob_api.well_known import RoleName
from ppojob_operator.conditions import from_rfc3339, holds, inert, rfc3339
from ppojob_operator.state import ControllerReport, DeletePod, Job, Observed, Pod, Termination, Time

RECORDS_KEPT = 8
FIRST_WAIT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 60.0
MOST_DOUBLINGS = 6
LOSS_SECONDS = 30.0
"""Ends of several pods of a role within this time are one loss."""

_BAD_COMMAND = frozenset({"ContainerCannotRun", "StartError"})
_NOT_RUNNABLE = frozenset({126, 127})
_KILLED = frozenset({137, 143})


@dataclass(frozen=True, slots=True)
class Ending:
    """How a job ended; its phase is never left."""

    phase: Literal["Succeeded", "Failed"]
    reason: str
    message: str


def ending(
    job: Job, report: ControllerReport | None, failure: Ending | None, now: Time
) -> Ending | None:
    """How the job ended; None while it goes on. What was written down once stays."""
    status = job.status
    if holds(status, "Complete"):
        return Ending("Succeeded", status.reason, status.message)
    if holds(status, "Failed"):
        return Ending("Failed", status.reason, status.message)
    if report is not None and report.phase == "done":
        return _reported(report)
    if failure is not None:
        return failure
    left = deadline_in(job, now)
    if left is not None and left <= 0:
        limit = job.lifecycle.active_deadline_seconds
        return Ending(
            "Failed",
            "DeadlineExceeded",
            f"spec.lifecycle.activeDeadlineSeconds: it ran for {limit} s without reaching its end",
        )
    return None


def deadline_in(job: Job, now: Time) -> float | None:
    """Seconds until the job has run for too long; None: never."""
    return _left(job.status.start_time, job.lifecycle.active_deadline_seconds, now)


def expiry_in(job: Job, observed: Observed, now: Time) -> float | None:
    """Seconds until an ended job is to be deleted; None: never, or not before its pods are gone.

    The controller of one whose deadline is over may be writing a checkpoint.
    """
    if observed.pods:
        return None
    return _left(job.status.finish_time, job.lifecycle.ttl_seconds_after_finished, now)


def _left(since: str | None, seconds: int | None, now: Time) -> float | None:
    if since is None or seconds is None:
        return None
    return (from_rfc3339(since) + datetime.timedelta(seconds=seconds) - now).total_seconds()


def _reported(report: ControllerReport) -> Ending | None:
    code = report.exit_code
    if code == contract.EXIT_DONE:
        return Ending("Succeeded", "TrainingDone", "every step is done and in a checkpoint")
    if code == contract.EXIT_INTERRUPTED:
        # Somebody asked it to end; its pod is on its way out, and another goes on.
        return None
    if code == contract.EXIT_INVALID:
        return Ending("Failed", "InvalidInput", report.reason)
    if code is None or code < 0:
        return Ending("Failed", "ControllerLost", report.reason)
    return Ending("Failed", "TrainingFailed", report.reason)


def classify(pod: Pod, end: Termination) -> FailureKind:
    """What the end of a pod's container is a sign of."""
    if pod.disruption or pod.is_deleting:
        return "disruption"
    if end.reason in _BAD_COMMAND or end.exit_code in _NOT_RUNNABLE:
        return "configuration"
    if end.exit_code == contract.EXIT_INVALID:
        return "configuration"
    if end.reason == "OOMKilled" or end.exit_code in _KILLED:
        return "transient"
    return "application"


def new_ends(role: RoleName, pods: tuple[Pod, ...], status: PPOJobStatus) -> int:
    """How many containers of a role's pods have ended that were not counted yet.

    What is compared is a sum over the pods that are there, so looking twice counts once, and a
    pod that is replaced takes its past with it.
    """
    known = next((one.ended for one in status.roles if one.name == role), 0)
    return max(0, ended(role, pods) - known)


def ended(role: RoleName, pods: tuple[Pod, ...]) -> int:
    """How many containers of the pods that are there have ended so far."""
    return sum(pod.ends for pod in pods if pod.role == role)


def new_records(pods: tuple[Pod, ...], status: PPOJobStatus, now: Time) -> list[FailureRecord]:
    """The losses that are not written down yet: one a role, with the pod that ended first.

    When one container of a role ends, the others soon do: ends of other pods shortly after belong
    to the same loss.
    """
    records = []
    for role in sorted({pod.role for pod in pods}):
        if not new_ends(role, pods, status):
            continue
        last = _last_record(role, status.failures)
        told = from_rfc3339(last.time) if last else None
        ends = {(one.uid, one.restart) for one in status.failures}
        since = [
            pod
            for pod in pods
            if pod.role == role
            and (pod.uid, pod.ends) not in ends
            and _ended_since(pod, told)
            and not _is_same_loss(pod, last, now)
        ]
        first = min(since, key=lambda pod: _end_time(pod, now), default=None)
        if first is not None:
            records.append(_record(first, status, now))
    return records


def _record(pod: Pod, status: PPOJobStatus, now: Time) -> FailureRecord:
    assert pod.last is not None
    reason = pod.last.reason
    return FailureRecord(
        pod=pod.name,
        uid=pod.uid,
        restart=pod.ends,
        role=pod.role,
        kind=classify(pod, pod.last),
        reason=f"ExitStatus{pod.last.exit_code}" if reason in {"", "Error"} else reason,
        message=inert(pod.last.message),
        step=status.training.step if status.training else 0,
        time=rfc3339(_end_time(pod, now)),
    )


def _end_time(pod: Pod, now: Time) -> Time:
    return pod.last.finished or now if pod.last else now


def _ended_since(pod: Pod, told: Time | None) -> bool:
    if pod.last is None:
        return False
    return told is None or pod.last.finished is None or pod.last.finished >= told


def _is_same_loss(pod: Pod, last: FailureRecord | None, now: Time) -> bool:
    if last is None or last.uid == pod.uid:
        return False
    return (_end_time(pod, now) - from_rfc3339(last.time)).total_seconds() < LOSS_SECONDS


def _last_record(role: str, records: tuple[FailureRecord, ...]) -> FailureRecord | None:
    return next((one for one in reversed(records) if one.role == role), None)


def trim_records(records: tuple[FailureRecord, ...]) -> tuple[FailureRecord, ...]:
    """The records that a status has room for: the latest, and the last of each role."""
    last = {one.role: one for one in records}
    others = [one for one in records if one is not last[one.role]]
    dropped = others[: max(0, len(records) - RECORDS_KEPT)]
    return tuple(one for one in records if one not in dropped)


def losses(role: RoleStatus | None, record: FailureRecord) -> int:
    """How often a role was lost at the step of a record that is not counted yet, this included."""
    if record.kind == "disruption":
        return 0
    return 1 + (role.losses if role is not None and role.losses_step == record.step else 0)


def ending_by_failures(
    new: list[FailureRecord], status: PPOJobStatus, budget: int
) -> Ending | None:
    """Whether these ends are the end of the job."""
    roles = {role.name: role for role in status.roles}
    for record in new:
        who = f"{record.role}: pod {record.pod}: {record.reason}: {record.message}"
        if record.kind == "configuration":
            return Ending("Failed", "InvalidConfiguration", who)
        if record.kind == "application" and any(_is_again(record, one) for one in status.failures):
            return Ending("Failed", "RepeatedFailure", f"twice at step {record.step}: {who}")
        lost = losses(roles.get(record.role), record)
        if lost > budget:
            count = f"{lost} times without a step in between, allowed are {budget}"
            return Ending("Failed", "RestartBudgetSpent", f"{count}: {who}")
    return None


def crashed_pods(
    pods: tuple[Pod, ...], status: PPOJobStatus, now: Time
) -> Iterator[tuple[DeletePod, float]]:
    """Pods to replace that the kubelet lets wait longer than we would, and in how many seconds.

    Our wait is 1 s, doubled by every loss of the role without progress, at most a minute; the
    kubelet's grows to five minutes and never knows of progress. Only a loss that is in the status
    counts, so a pod is never deleted before its failure is recorded.
    """
    roles = {role.name: role for role in status.roles}
    for pod in pods:
        record = _last_record(pod.role, status.failures)
        if pod.waiting_reason != "CrashLoopBackOff" or pod.is_deleting or record is None:
            continue
        if new_ends(pod.role, pods, status) or not _is_recorded(pod, record, now):
            continue
        wait = _wait(roles.get(pod.role), record)
        left = wait - (now - from_rfc3339(record.time)).total_seconds()
        yield DeletePod(pod.name, pod.uid), left


def _is_recorded(pod: Pod, record: FailureRecord, now: Time) -> bool:
    """Whether a record is of the pod's last end, or of the loss that this belongs to."""
    is_its = (record.uid, record.restart) == (pod.uid, pod.ends)
    return is_its or _is_same_loss(pod, record, now)


def _wait(role: RoleStatus | None, last: FailureRecord) -> float:
    """Seconds from a role's last loss until its pods that crash are replaced."""
    count = role.losses if role is not None and role.losses_step == last.step else 1
    doublings = min(max(0, count - 1), MOST_DOUBLINGS)
    return min(FIRST_WAIT_SECONDS * 2.0**doublings, LONGEST_WAIT_SECONDS)


def _is_again(record: FailureRecord, other: FailureRecord) -> bool:
    ends = [(one.role, one.step, one.kind, one.reason) for one in (record, other)]
    return ends[0] == ends[1]


def lost_pods(
    observed: Observed, silence_seconds: float, now: Time
) -> Iterator[tuple[DeletePod, float]]:
    """Pods to delete on nodes that do not answer, and in how many seconds.

    A StatefulSet would wait for them for ever, so they are deleted without waiting for their node.
    Safe although the pod may still run: its role's next attempt refuses whatever it says, and only
    the attempt of the checkpoint can write one.
    """
    for pod in observed.pods:
        since = observed.silent_since(pod)
        if since is not None:
            left = silence_seconds - (now - since).total_seconds()
            yield DeletePod(pod.name, pod.uid, force=True), left
