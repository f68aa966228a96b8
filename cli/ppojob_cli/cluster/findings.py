"""Reasons why a job makes no progress, the most important first. Pure."""

import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Final

from ppojob_api.problem import counted, printable
from ppojob_api.run_config import resolve
from ppojob_api.v1alpha1.pod_settings import settings_of
from ppojob_api.v1alpha1.status import FailureRecord
from ppojob_api.well_known import RoleName, workload_name
from ppojob_cli.figures import duration, seconds_of
from ppojob_operator.conditions import ConditionType, acceptance, condition, from_rfc3339, holds
from ppojob_operator.policies.ending import deadline_in
from ppojob_operator.policies.pods_ready import (
    PodNames,
    accepted_pods,
    first_of,
    obstacles,
    pods_ready,
    wanted_pods,
)
from ppojob_operator.state import ControllerReport, Job, Observed, Pod, Time

UNKNOWN: Final = "reasons.md, of the version of the operator"
_SILENT_LEASES: Final = 3  # number of terms without a renewal after which a Lease has no holder
_BEHIND_SECONDS: Final = 30.0  # time after which a job that no operator has processed waits for one
_RECENT_SECONDS: Final = 600.0  # age up to which a failure is reported
_STALE_SECONDS: Final = 300.0
"""Time without progress after which a step is stale, if it is also three times the usual time."""
_STALE_STEPS: Final = 3
_DEADLINE_SECONDS: Final = 600.0  # time before a deadline from which it is near

_WIDTH: Final = 100
_HEADING: Final = re.compile(r"^## (?=(\w+))", re.MULTILINE)
_ROW: Final = re.compile(r"^\| (`[^|]+) \| (?:[^|]+ \| )?(.+) \|$", re.MULTILINE)
_SEEN_IN_PODS: Final = frozenset(
    (
        *("Starting", "NodeLost", "ImageUnavailable", "Unschedulable"),
        *("ContainerWaiting", "PodFailed", "PodsDenied", "PodsMissing"),
    )
)


@dataclass(frozen=True, slots=True)
class WarningEvent:
    """A warning Event about the object of this kind and name."""

    kind: str
    name: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class OperatorLease:
    """The Lease of the operator."""

    holder: str  # leading replica; empty for none
    renewed: Time | None  # time of the last renewal; None for never
    seconds: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A job and the related objects of the cluster, at one time."""

    job: Job
    now: Time
    pods: tuple[Pod, ...] | None = ()  # existing pods; None if access is denied
    # When the kubelets of nodes of the pods stopped responding, as far as access is allowed.
    unreachable_nodes: Mapping[str, Time] = field(default_factory=dict)
    warnings: tuple[WarningEvent, ...] = ()  # about the job's objects, the latest last
    # Of the operator; None if there is none, or access is denied.
    lease: OperatorLease | None = None
    # Time of the controller's last report of progress; None for never.
    progressed: Time | None = None
    # Of the supervisors, by uid of the pod.
    reports: Mapping[str, ControllerReport] = field(default_factory=dict)
    hidden: tuple[str, ...] = ()  # what could not be read, and why, a line each


@dataclass(frozen=True, slots=True)
class Finding:
    """A reason why a job makes no progress."""

    reason: str  # CamelCase word, with a line in reasons.md
    what: str
    remedy: str


def explanation(snapshot: Snapshot) -> Iterator[str]:
    """Format the findings as lines."""
    found = findings(snapshot)
    yield f"{snapshot.job.name}: {_summary(snapshot, len(found))}"
    for number, one in enumerate(found, start=1):
        yield ""
        yield from _wrapped(f"{number}. {one.reason}: {one.what}", "", "   ")
        yield from _wrapped(one.remedy, "   -> ", "      ")
    if snapshot.hidden:
        yield ""
    for line in snapshot.hidden:
        yield from _wrapped(f"not looked at: {line}", "", "  ")


def _summary(snapshot: Snapshot, number: int) -> str:
    status = snapshot.job.status
    training = status.training
    step = f" at step {training.step} of {training.total_steps or '?'}" if training else ""
    where = f"{status.phase}{step}"
    if status.phase == "Succeeded":
        return f"{where}: done"
    if not number:
        return f"{where}: no reason for a delay was found"
    return f"{where}: {counted(number, 'thing')} to know"


def _wrapped(text: str, first: str, rest: str) -> list[str]:
    # Words of logs and paths are not broken, so that they can be searched for.
    return textwrap.wrap(
        printable(text),
        _WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


@cache
def tables() -> dict[str, dict[str, str]]:
    """Read the remedies of all reasons, by the first word of their section's heading."""
    page = resources.files("ppojob_cli.cluster").joinpath("reasons.md").read_text("utf-8")
    _, *parts = _HEADING.split(page)
    return {
        heading: {
            word: what_to_do
            for words, what_to_do in _ROW.findall(section)
            for word in re.findall(r"`(\w+)`", words)
        }
        for heading, section in zip(parts[::2], parts[1::2], strict=True)
    }


def remedy(heading: str, reason: str) -> str:
    """Return what to do about a reason; `UNKNOWN` if the operator is newer than the page.

    `heading` is a condition, `Found` for reasons without one, or `Ended` for the kind of a failure.
    """
    # A job may fail for the reason of another condition, such as `Accepted`.
    places = (tables().get(heading, {}), *tables().values())
    return next((table[reason] for table in places if reason in table), UNKNOWN)


def findings(snapshot: Snapshot) -> list[Finding]:
    """Return every reason why the job makes no progress; none if it does, or is done."""
    status = snapshot.job.status
    if holds(status, "Complete"):
        return []
    if snapshot.job.is_deleting:
        return [_found("Deleting", "the job is being deleted")]
    if holds(status, "Failed"):
        return [*_of_condition(snapshot, "Failed"), *_failures(snapshot, every=True)]
    found = [*_operator(snapshot), *_accepted(snapshot)]
    suspended = condition(status, "Suspended")
    if suspended is not None and (suspended.status == "True" or suspended.reason == "Suspending"):
        return [*found, *_of_condition(snapshot, "Suspended")]
    return [
        *found,
        *_admitted(snapshot),
        *_pods(snapshot),
        *_memory_limits(snapshot),
        *_failures(snapshot),
        *_rendezvous(snapshot),
        *_stale_step(snapshot),
        *_deadline(snapshot),
    ]


def _found(reason: str, what: str, heading: str = "Found") -> Finding:
    return Finding(reason, what, remedy(heading, reason))


def _of_condition(snapshot: Snapshot, name: ConditionType) -> Iterator[Finding]:
    found = condition(snapshot.job.status, name)
    if found is not None:
        yield _found(found.reason, found.message or found.reason, name)


def _operator(snapshot: Snapshot) -> Iterator[Finding]:
    lease, job = snapshot.lease, snapshot.job
    if lease is not None:
        silence = (snapshot.now - lease.renewed).total_seconds() if lease.renewed else None
        if silence is None or not lease.holder or silence > _SILENT_LEASES * lease.seconds:
            since = "never" if silence is None else f"{duration(silence)} ago"
            yield _found("OperatorSilent", f"no operator leads: its Lease was renewed last {since}")
            return
    looked = job.status.observed_generation
    age = (snapshot.now - job.created).total_seconds()
    if looked is None and age > _BEHIND_SECONDS:
        what = f"no operator has looked at the job in the {duration(age)} that it is there"
        yield _found("OperatorBehind", what)
    elif looked not in {None, job.generation}:
        what = f"the job was edited ({job.generation} times), the operator has seen {looked}"
        yield _found("OperatorBehind", what)


def _accepted(snapshot: Snapshot) -> Iterator[Finding]:
    accepted, problems = condition(snapshot.job.status, "Accepted"), snapshot.job.problems
    if accepted is not None and accepted.status != "True":
        yield from _of_condition(snapshot, "Accepted")
    elif problems:
        own = acceptance(problems)
        # The operator may accept a newer spec than this command line.
        if accepted is None or own.reason != "NewerSpec":
            yield _found(own.reason, own.message, "Accepted")


def _admitted(snapshot: Snapshot) -> Iterator[Finding]:
    status = snapshot.job.status
    admitted, accepted = condition(status, "Admitted"), condition(status, "Accepted")
    # A job without pods has the reason of a refused spec in both conditions.
    is_repeated = (
        admitted is not None and accepted is not None and accepted.reason == admitted.reason
    )
    if admitted is not None and admitted.status == "False" and not is_repeated:
        yield from _of_condition(snapshot, "Admitted")


def _pods(snapshot: Snapshot) -> Iterator[Finding]:
    """Yield reasons from the pods, which may have several, and are newer than the status."""
    ready, roles = condition(snapshot.job.status, "PodsReady"), _roles(snapshot.job)
    known = _SEEN_IN_PODS if snapshot.pods is not None and roles else frozenset()
    denials = _denials(snapshot, roles)
    # Without access to events, only the operator reports it.
    is_reported = ready is not None and ready.reason == "PodsDenied" and not denials
    if is_reported:
        known -= {"PodsDenied"}
    if ready is not None and ready.status == "False" and ready.reason not in {*known, "Stopped"}:
        yield from _of_condition(snapshot, "PodsReady")
    # Pods are not expected before the operator has admitted the job.
    is_due = holds(snapshot.job.status, "Admitted")
    if snapshot.pods is None or not roles or not (snapshot.pods or is_due):
        return
    observed = Observed(
        pods=snapshot.pods, unreachable_nodes=snapshot.unreachable_nodes, denials=denials
    )
    claim = pods_ready(roles, observed, float("inf"))
    if claim.holds:
        return
    found = [
        _found(reason, first_of(lines), "PodsReady")
        for reason, lines in obstacles(roles, observed)
        if lines and not (is_reported and reason == "PodsMissing")
    ]
    if mounts := _mount_warnings(snapshot):
        found.append(_found("ContainerWaiting", first_of(mounts), "PodsReady"))
    yield from found or ([] if is_reported else [_found("Starting", claim.message, "PodsReady")])


def _denials(snapshot: Snapshot, roles: PodNames) -> dict[RoleName, str]:
    """Return why pods are not created, from the events of the StatefulSets."""
    sets = {workload_name(snapshot.job.name, role): role for role in roles}
    return {
        sets[one.name]: one.message
        for one in snapshot.warnings
        if one.kind == "StatefulSet" and one.name in sets and one.reason == "FailedCreate"
    }


def _mount_warnings(snapshot: Snapshot) -> list[str]:
    """Describe pods that wait for a volume: a Secret, ConfigMap or claim that cannot be mounted."""
    waiting = {
        pod.name: pod for pod in snapshot.pods or () if pod.waiting_reason == "ContainerCreating"
    }
    messages = {
        one.name: one.message
        for one in snapshot.warnings
        if one.name in waiting and one.reason in {"FailedMount", "FailedAttachVolume"}
    }
    return [f"{waiting[name].role}: pod {name}: {text}" for name, text in messages.items()]


def _memory_limits(snapshot: Snapshot) -> Iterator[Finding]:
    """Yield memory limits that the job does not set: most often those of a LimitRange."""
    if snapshot.job.validated is None:
        return
    settings = snapshot.job.validated.spec.pods
    lines = [
        f"{pod.role}: pod {pod.name}: memory limit {pod.memory_limit}, which the job does not set"
        for pod in snapshot.pods or ()
        if pod.memory_limit and settings_of(settings, pod.role).memory is None
    ]
    if lines:
        yield _found("MemoryLimited", first_of(lines))


def _failures(snapshot: Snapshot, *, every: bool = False) -> Iterator[Finding]:
    """Yield recent failures, one finding per role and reason, the latest first."""
    groups: dict[tuple[str, str], list[FailureRecord]] = {}
    for record in reversed(snapshot.job.status.failures):
        if every or _age(record, snapshot) < _RECENT_SECONDS:
            groups.setdefault((record.role, record.reason), []).append(record)
    for (role, reason), records in groups.items():
        last = records[0]
        age = duration(_age(last, snapshot))
        times = f"{len(records)} times, last " if len(records) > 1 else ""
        message = f": {last.message}" if last.message else ""
        what = (
            f"{role}: pod {last.pod} ended {times}{age} ago at step {last.step}: {reason}{message}"
        )
        yield Finding(reason, what, f"{last.kind}: {remedy('Ended', last.kind)}")


def _age(record: FailureRecord, snapshot: Snapshot) -> float:
    return (snapshot.now - from_rfc3339(record.time)).total_seconds()


def _rendezvous(snapshot: Snapshot) -> Iterator[Finding]:
    met = condition(snapshot.job.status, "Rendezvoused")
    if met is None or met.status == "True" or met.reason == "Stopped":
        return
    late = [
        f"{pod.role}: pod {pod.name}: its ranks are {report.phase}"
        + (f": {report.reason}" if report.reason else "")
        for pod in snapshot.pods or ()
        if (report := snapshot.reports.get(pod.uid)) and report.phase not in {"ready", "done"}
    ]
    if late:
        yield _found("RanksMissing", first_of(late))
    elif holds(snapshot.job.status, "PodsReady"):
        yield from _of_condition(snapshot, "Rendezvoused")


def _stale_step(snapshot: Snapshot) -> Iterator[Finding]:
    training = snapshot.job.status.training
    if (
        training is None
        or snapshot.progressed is None
        or not holds(snapshot.job.status, "Training")
    ):
        return
    silence = (snapshot.now - snapshot.progressed).total_seconds()
    missing, rest = (training.total_steps or 0) - training.step, _seconds_left(snapshot)
    each = rest / missing if rest is not None and missing > 0 else None
    if silence > max(_STALE_SECONDS, _STALE_STEPS * (each or 0.0)):
        usual = f"; a step took about {duration(each)}" if each else ""
        what = f"nothing new from the controller for {duration(silence)} since step"
        yield _found("StepStale", f"{what} {training.step}{usual}")


def _deadline(snapshot: Snapshot) -> Iterator[Finding]:
    left, needed = deadline_in(snapshot.job, snapshot.now), _seconds_left(snapshot)
    if left is None:
        return
    what = f"its deadline is in {duration(left)}"
    if needed is not None and needed > left:
        yield _found("DeadlineNear", f"{what}, and the rest takes about {duration(needed)}")
    elif left < _DEADLINE_SECONDS:
        yield _found("DeadlineNear", what)


def _seconds_left(snapshot: Snapshot) -> int | None:
    training = snapshot.job.status.training
    return seconds_of(training.eta) if training is not None and training.eta else None


def _roles(job: Job) -> PodNames:
    if job.validated is None:
        return accepted_pods(job)
    return wanted_pods(resolve(job.validated).topology)
