"""How a job ends, and the classes of container failures. Pure.

Classes of failures:
    configuration   the same input fails again: the job fails at once
    application     our code or the user's failed: the same failure twice at one step fails the job
    transient       killed, out of memory: restarted with exponential backoff
    disruption      drained, preempted, evicted: restarted, not counted

The restart budget is `spec.recovery.restartsWithoutProgress`: a role that is lost more often
without a completed step in between fails the job.
"""

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ppojob_api import contract
from ppojob_api.problem import counted
from ppojob_api.v1alpha1.status import FailureKind, FailureRecord, PPOJobStatus, RoleStatus
from ppojob_api.well_known import RoleName
from ppojob_operator.conditions import from_rfc3339, holds, rfc3339, sanitized
from ppojob_operator.state import ControllerReport, Delete, Job, Observed, Pod, Termination, Time

RECORDS_KEPT = 8
FIRST_BACKOFF_SECONDS = 1.0
LONGEST_BACKOFF_SECONDS = 60.0
LOSS_SECONDS = 30.0
"""Failures of several pods of a role within this time are one loss of the role."""

_BAD_COMMAND = frozenset({"ContainerCannotRun", "StartError"})
_NOT_RUNNABLE = frozenset({126, 127})
_KILLED = frozenset({137, 143})


@dataclass(frozen=True, slots=True)
class Ending:
    """How a job ended; the phase is final."""

    phase: Literal["Succeeded", "Failed"]
    reason: str
    message: str


def ending(
    job: Job, report: ControllerReport | None, failure: Ending | None, now: Time
) -> Ending | None:
    """How the job ended; None if it has not. An ending in the status is final."""
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
            f"spec.lifecycle.activeDeadlineSeconds: the job was active for more than {limit} s",
        )
    return None


def deadline_in(job: Job, now: Time) -> float | None:
    """Seconds until the active deadline of the job; None: it has none."""
    return _left(job.status.start_time, job.lifecycle.active_deadline_seconds, now)


def expiry_in(job: Job, observed: Observed, now: Time) -> float | None:
    """Seconds until an ended job is deleted; None: never, or not while it has pods.

    After the active deadline the controller may still be writing a checkpoint.
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
        return Ending("Succeeded", "TrainingDone", "all steps are completed and checkpointed")
    if code == contract.EXIT_INTERRUPTED:
        # It was terminated from outside; the next controller resumes.
        return None
    if code == contract.EXIT_INVALID:
        return Ending("Failed", "InvalidInput", report.reason)
    if code is None or code < 0:
        return Ending("Failed", "ControllerLost", report.reason)
    return Ending("Failed", "TrainingFailed", report.reason)


def classify(pod: Pod, end: Termination) -> FailureKind:
    """The class of a container failure."""
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
    """Number of container terminations of a role that are not counted in the status yet.

    Compares sums over the existing pods, so a second reconcile counts nothing twice, and the
    terminations of a replaced pod no longer count.
    """
    known = next((one.ended for one in status.roles if one.name == role), 0)
    return max(0, ended(role, pods) - known)


def ended(role: RoleName, pods: tuple[Pod, ...]) -> int:
    """Number of container terminations of the existing pods of a role."""
    return sum(pod.ends for pod in pods if pod.role == role)


def new_records(pods: tuple[Pod, ...], status: PPOJobStatus, now: Time) -> list[FailureRecord]:
    """Failures that are not in the status yet: one per role, of the pod that failed first.

    When one container of a role fails, the others soon do: failures of other pods within
    `LOSS_SECONDS` belong to the same loss.
    """
    records = []
    for role in sorted({pod.role for pod in pods}):
        if not new_ends(role, pods, status):
            continue
        last = _last_record(role, status.failures)
        last_time = from_rfc3339(last.time) if last else None
        ends = {(one.uid, one.restart) for one in status.failures}
        since = [
            pod
            for pod in pods
            if pod.role == role
            and (pod.uid, pod.ends) not in ends
            and _ended_since(pod, last_time)
            and not _is_same_loss(pod, last, now)
        ]
        first = min(since, key=lambda pod: _end_time(pod, now), default=None)
        if first is not None:
            records.append(_record(first, status, now))
    return records


def _record(pod: Pod, status: PPOJobStatus, now: Time) -> FailureRecord:
    assert pod.last is not None
    reason, message = pod.last.reason, pod.last.message
    if reason == "OOMKilled" and not message:
        message = f"memory limit {pod.memory_limit}" if pod.memory_limit else "no memory limit"
    return FailureRecord(
        pod=pod.name,
        uid=pod.uid,
        restart=pod.ends,
        role=pod.role,
        kind=classify(pod, pod.last),
        reason=f"ExitStatus{pod.last.exit_code}" if reason in {"", "Error"} else reason,
        message=sanitized(message),
        step=status.training.step if status.training else 0,
        time=rfc3339(_end_time(pod, now)),
    )


def _end_time(pod: Pod, now: Time) -> Time:
    return pod.last.finished or now if pod.last else now


def _ended_since(pod: Pod, time: Time | None) -> bool:
    if pod.last is None:
        return False
    return time is None or pod.last.finished is None or pod.last.finished >= time


def _is_same_loss(pod: Pod, last: FailureRecord | None, now: Time) -> bool:
    if last is None or last.uid == pod.uid:
        return False
    return (_end_time(pod, now) - from_rfc3339(last.time)).total_seconds() < LOSS_SECONDS


def _last_record(role: str, records: tuple[FailureRecord, ...]) -> FailureRecord | None:
    return next((record for record in reversed(records) if record.role == role), None)


def trim_records(records: tuple[FailureRecord, ...]) -> tuple[FailureRecord, ...]:
    """The records that the status keeps: the latest ones, and the last of each role."""
    last = {record.role: record for record in records}
    others = [record for record in records if record is not last[record.role]]
    dropped = others[: max(0, len(records) - RECORDS_KEPT)]
    return tuple(record for record in records if record not in dropped)


def losses(role: RoleStatus | None, record: FailureRecord) -> int:
    """How often a role was lost at the step of a new record, including this loss."""
    if record.kind == "disruption":
        return 0
    return 1 + (role.losses if role is not None and role.losses_step == record.step else 0)


def ending_by_failures(
    new: list[FailureRecord], status: PPOJobStatus, budget: int
) -> Ending | None:
    """The ending of the job by new failures, if they end it."""
    roles = {role.name: role for role in status.roles}
    for record in new:
        who = f"{record.role}: pod {record.pod}: {record.reason}: {record.message}"
        if record.kind == "configuration":
            return Ending("Failed", "InvalidConfiguration", who)
        if record.kind == "application" and any(
            _is_repeated(record, one) for one in status.failures
        ):
            return Ending(
                "Failed", "RepeatedFailure", f"the same failure twice at step {record.step}: {who}"
            )
        lost = losses(roles.get(record.role), record)
        if lost > budget:
            count = f"lost {counted(lost, 'time')} without a completed step in between"
            limit = f"spec.recovery.restartsWithoutProgress is {budget}"
            return Ending("Failed", "RestartBudgetSpent", f"{count}, {limit}: {who}")
    return None


def crashed_pods(
    pods: tuple[Pod, ...], status: PPOJobStatus, now: Time
) -> Iterator[tuple[Delete, float]]:
    """Pods in CrashLoopBackOff to delete, each with the seconds until then.

    Our backoff is 1 s, doubled at each loss of the role without progress, at most a minute. The
    kubelet's grows to five minutes, whatever the progress. Only failures in the status count, so no
    pod is deleted before its failure is recorded.
    """
    roles = {role.name: role for role in status.roles}
    for pod in pods:
        record = _last_record(pod.role, status.failures)
        if pod.waiting_reason != "CrashLoopBackOff" or pod.is_deleting or record is None:
            continue
        if new_ends(pod.role, pods, status) or not _is_recorded(pod, record, now):
            continue
        backoff = _backoff(roles.get(pod.role), record)
        left = backoff - (now - from_rfc3339(record.time)).total_seconds()
        yield Delete("Pod", pod.name, pod.uid), left


def _is_recorded(pod: Pod, record: FailureRecord, now: Time) -> bool:
    """Whether a record is of the pod's last termination, or of the same loss."""
    is_own = (record.uid, record.restart) == (pod.uid, pod.ends)
    return is_own or _is_same_loss(pod, record, now)


def _backoff(role: RoleStatus | None, last: FailureRecord) -> float:
    """Seconds from a role's last loss until its crashed pods are deleted."""
    count = role.losses if role is not None and role.losses_step == last.step else 1
    return min(FIRST_BACKOFF_SECONDS * 2.0 ** min(max(0, count - 1), 16), LONGEST_BACKOFF_SECONDS)


def _is_repeated(record: FailureRecord, other: FailureRecord) -> bool:
    ends = [(one.role, one.step, one.kind, one.reason) for one in (record, other)]
    return ends[0] == ends[1]


def pods_on_unreachable_nodes(
    observed: Observed, silence_seconds: float, now: Time
) -> Iterator[tuple[Delete, float]]:
    """Pods to delete on nodes that do not respond, each with the seconds until then.

    The deletion is forced: a StatefulSet would wait for such a pod forever. It is safe although the
    pod may still run: the next attempt of its role refuses its messages, and only the attempt of a
    checkpoint can write it.
    """
    for pod in observed.pods:
        since = observed.unreachable_nodes.get(pod.node)
        if since is not None:
            left = silence_seconds - (now - since).total_seconds()
            yield Delete("Pod", pod.name, pod.uid, force=True), left
