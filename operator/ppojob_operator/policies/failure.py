"""What the end of a container is a sign of, and whether the job goes on. Pure.

Classes:
    configuration   the same input fails for ever: the job fails at once
    application     our code or the user's ended: the same twice at one step fails the job
    transient       killed, out of memory: started again, after longer and longer waits
    disruption      drained, preempted, evicted: nobody's fault, not counted

Budgets are those of `spec.recovery`: a role that is lost more often than
`restartsWithoutProgress` without a step done in between fails the job.
"""

import datetime
from dataclasses import dataclass

from ppojob_api import contract
from ppojob_api.v1alpha1.status import FailureKind, FailureRecord
from ppojob_api.well_known import RoleName
from ppojob_operator.conditions import from_rfc3339, inert, rfc3339
from ppojob_operator.state import DeletePod, Pod, Termination, Time

RECORDS_KEPT = 8
FIRST_WAIT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 60.0

_BAD_COMMAND = frozenset({"ContainerCannotRun", "StartError"})
_NOT_RUNNABLE = frozenset({126, 127})
_KILLED = frozenset({137, 143})


@dataclass(frozen=True, slots=True)
class Verdict:
    """That the job has failed, and why."""

    reason: str
    message: str


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


def new_records(
    pods: tuple[Pod, ...], known: tuple[FailureRecord, ...], step: int, now: Time
) -> tuple[FailureRecord, ...]:
    """Ends of containers that are not written down yet.

    An end is known by its pod's uid and the number of the restart that followed it, so looking
    twice counts once.
    """
    seen = {record.uid: record.restart for record in known}
    records = []
    for pod in pods:
        if pod.last is None or pod.restarts <= seen.get(pod.uid, 0):
            continue
        reason = pod.last.reason
        if reason in {"", "Error"}:
            reason = f"ExitStatus{pod.last.exit_code}"
        records.append(
            FailureRecord(
                pod=pod.name,
                uid=pod.uid,
                restart=pod.restarts,
                role=pod.role,
                kind=classify(pod, pod.last),
                reason=reason,
                message=inert(pod.last.message),
                step=step,
                time=rfc3339(pod.last.finished or now),
            )
        )
    return tuple(records)


def judge(
    new: tuple[FailureRecord, ...], known: tuple[FailureRecord, ...], budget: int
) -> Verdict | None:
    """Whether these ends are the end of the job."""
    for record in new:
        who = f"{record.role}: pod {record.pod}: {record.reason}: {record.message}"
        if record.kind == "configuration":
            return Verdict("InvalidConfiguration", who)
        same = [one for one in (*known, *new) if _without_progress(one, record)]
        if record.kind == "application" and _again(record, same):
            return Verdict("RepeatedFailure", f"twice at step {record.step}: {who}")
        lost = sum(one.kind != "disruption" for one in same)
        if record.kind != "disruption" and lost > budget:
            count = f"{lost} times without a step in between, allowed are {budget}"
            return Verdict("RestartBudgetSpent", f"{count}: {who}")
    return None


def crashed_pods(
    pods: tuple[Pod, ...], known: tuple[FailureRecord, ...], now: Time
) -> tuple[tuple[DeletePod, ...], float | None]:
    """Pods that the kubelet lets wait longer than we would, and seconds until the next.

    Our wait is 1 s, doubled by every end of the role without progress, at most a minute; the
    kubelet's grows to five minutes and never knows of progress. Only an end that is written down
    is acted on, so that a pod never goes before its story.
    """
    deletions: list[DeletePod] = []
    waits: list[float] = []
    for pod in pods:
        record = next(
            (one for one in known if (one.uid, one.restart) == (pod.uid, pod.restarts)), None
        )
        if pod.waiting_reason != "CrashLoopBackOff" or pod.is_deleting or record is None:
            continue
        ends = sum(_without_progress(one, record) for one in known)
        wait = min(FIRST_WAIT_SECONDS * 2.0 ** (ends - 1), LONGEST_WAIT_SECONDS)
        left = (from_rfc3339(record.time) + datetime.timedelta(seconds=wait) - now).total_seconds()
        if left > 0:
            waits.append(left)
        else:
            deletions.append(DeletePod(pod.name, pod.uid))
    return tuple(deletions), min(waits, default=None)


def counted(records: tuple[FailureRecord, ...], role: RoleName) -> int:
    """How many of these ends count as restarts of a role."""
    return sum(record.role == role and record.kind != "disruption" for record in records)


def _without_progress(one: FailureRecord, other: FailureRecord) -> bool:
    return (one.role, one.step) == (other.role, other.step)


def _again(record: FailureRecord, same: list[FailureRecord]) -> bool:
    return sum((one.kind, one.reason) == (record.kind, record.reason) for one in same) > 1
