"""Why a job does not go on: every reason that can be seen, the most important first. Pure."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Final

from ppojob_api.run_config import resolve
from ppojob_api.v1alpha1.status import Condition, FailureRecord, TrainingStatus
from ppojob_api.well_known import workload_name
from ppojob_cli.figures import duration, seconds_of
from ppojob_operator.conditions import (
    ConditionType,
    acceptance,
    condition,
    from_rfc3339,
    holds,
)
from ppojob_operator.policies.ending import deadline_in
from ppojob_operator.policies.startup import (
    PodNames,
    accepted_pods,
    missing_pods,
    obstacles,
    pods_ready,
    wanted_pods,
)
from ppojob_operator.state import ControllerReport, Job, Node, Observed, Pod, Time

UNKNOWN: Final = "reasons.md, of the version of the operator"
SILENT_LEASES: Final = 3
"""A Lease that was not renewed for so many of its terms has no holder."""
BEHIND_SECONDS: Final = 30.0
"""A job that no operator has looked at for so long waits for one."""
RECENT_SECONDS: Final = 600.0
"""A loss is news for so long."""
STALE_SECONDS: Final = 300.0
"""A step may take so long without a word, or three times what others took."""
DEADLINE_SECONDS: Final = 600.0
"""A deadline is near from then on."""

_STALE_STEPS: Final = 3
_HEADING: Final = re.compile(r"^## (?=(\w+))", re.MULTILINE)
_ROW: Final = re.compile(r"^\| (`[^|]+) \| (?:[^|]+ \| )?(.+) \|$", re.MULTILINE)
_SEEN_IN_PODS: Final = frozenset(
    {
        "Starting",
        "NodeLost",
        "ImageUnavailable",
        "Unschedulable",
        "ContainerWaits",
        "PodFailed",
        "PodsMissing",
    }
)


@dataclass(frozen=True, slots=True)
class ToldWarning:
    """A warning that somebody has written as an Event about the object of this kind and name."""

    kind: str
    name: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class SeenLease:
    """The Lease of the operator.

    Attributes:
        holder: replica that leads; empty: none.
        renewed: when it said so last; None: never.
    """

    holder: str
    renewed: Time | None
    seconds: int


@dataclass(frozen=True, slots=True)
class Seen:
    """A job and its surroundings.

    Attributes:
        pods: that are there; None: they may not be seen.
        nodes: of the pods, as far as they may be seen.
        warnings: about the job's objects, the latest last.
        lease: of the operator; None: there is none, or it may not be seen.
        progressed: when the controller last told of progress; None: never.
        reports: what the supervisors of pods say, by uid of the pod.
        hidden: what could not be looked at, and why, a line each.
    """

    job: Job
    now: Time
    pods: tuple[Pod, ...] | None = ()
    nodes: Mapping[str, Node] = field(default_factory=dict)
    warnings: tuple[ToldWarning, ...] = ()
    lease: SeenLease | None = None
    progressed: Time | None = None
    reports: Mapping[str, ControllerReport] = field(default_factory=dict)
    hidden: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """One reason why a job does not go on.

    Attributes:
        reason: CamelCase word; reasons.md has a line for each.
    """

    reason: str
    what: str
    remedy: str


@cache
def tables() -> dict[str, dict[str, str]]:
    """What to do about each word, by the first word of the heading that it stands under."""
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
    """What to do about a reason; an operator may be newer than the page.

    Args:
        heading: A condition; `Found` for what is in none; `Ended` for the class of a failure.
        reason: The word.
    """
    # A job may fail by the reason of another condition: one that was never accepted.
    places = (tables().get(heading, {}), *tables().values())
    return next((table[reason] for table in places if reason in table), UNKNOWN)


def findings(seen: Seen) -> list[Finding]:
    """Every reason why the job does not go on; none where it does, or is done."""
    job = seen.job
    if holds(job.status, "Complete"):
        return []
    if job.is_deleting:
        return [Finding("Deleting", "the job is being deleted", remedy("Found", "Deleting"))]
    failed = condition(job.status, "Failed")
    if failed is not None and failed.status == "True":
        return [_of_condition("Failed", failed), *_losses(seen, every=True)]
    found = [*_operator(seen), *_accepted(job)]
    suspended = condition(job.status, "Suspended")
    if suspended is not None and suspended.reason != "NotAsked":
        return [*found, _of_condition("Suspended", suspended)]
    return [
        *found,
        *_admitted(job),
        *_pods(seen),
        *_losses(seen),
        *_rendezvous(seen),
        *_stale_step(seen),
        *_deadline(seen),
    ]


def _operator(seen: Seen) -> Iterator[Finding]:
    lease, job = seen.lease, seen.job
    if lease is not None:
        silence = (seen.now - lease.renewed).total_seconds() if lease.renewed else None
        if silence is None or not lease.holder or silence > SILENT_LEASES * lease.seconds:
            since = "never" if silence is None else f"{duration(silence)} ago"
            what = f"no operator leads: its Lease was renewed last {since}"
            yield Finding("OperatorSilent", what, remedy("Found", "OperatorSilent"))
            return
    looked = job.status.observed_generation
    if looked == job.generation:
        return
    age = (seen.now - job.created).total_seconds()
    if looked is None and age > BEHIND_SECONDS:
        what = f"no operator has looked at the job in the {duration(age)} that it is there"
        yield Finding("OperatorBehind", what, remedy("Found", "OperatorBehind"))
    elif looked is not None:
        what = f"the job was edited ({job.generation} times), the operator has seen {looked}"
        yield Finding("OperatorBehind", what, remedy("Found", "OperatorBehind"))


def _accepted(job: Job) -> Iterator[Finding]:
    accepted = condition(job.status, "Accepted")
    if accepted is not None and accepted.status != "True":
        yield _of_condition("Accepted", accepted)
    elif job.problems:
        said = acceptance(job.problems)
        # What an operator has accepted is newer than this command line alone.
        if accepted is None or said.reason != "NewerSpec":
            yield Finding(said.reason, said.message, remedy("Accepted", said.reason))


def _admitted(job: Job) -> Iterator[Finding]:
    admitted, accepted = condition(job.status, "Admitted"), condition(job.status, "Accepted")
    if admitted is None or admitted.status != "False":
        return
    # A job without pods whose spec is refused says why twice.
    if accepted is None or accepted.reason != admitted.reason:
        yield _of_condition("Admitted", admitted)


def _pods(seen: Seen) -> Iterator[Finding]:
    """From the pods themselves, which know more than one reason, and are newer than the status."""
    ready, roles = condition(seen.job.status, "PodsReady"), _roles(seen.job)
    known = _SEEN_IN_PODS if seen.pods is not None and roles else frozenset()
    if ready is not None and ready.status == "False" and ready.reason not in {*known, "Stopped"}:
        yield _of_condition("PodsReady", ready)
    # Before the operator has seen the job nobody is to have made any.
    is_due = holds(seen.job.status, "Admitted")
    if seen.pods is None or not roles or not (seen.pods or is_due):
        return
    observed = Observed(pods=seen.pods, nodes=seen.nodes)
    claim = pods_ready(roles, observed, float("inf"))
    if claim.holds:
        return
    found = [(reason, lines) for reason, lines in obstacles(roles, observed) if lines]
    for reason, lines in found:
        more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
        words = _words_about_missing(seen, roles) if reason == "PodsMissing" else ""
        yield Finding(reason, f"{lines[0]}{more}{words}", remedy("PodsReady", reason))
    mounts = _mount_warnings(seen)
    for line in mounts:
        yield Finding("ContainerWaits", line, remedy("PodsReady", "ContainerWaits"))
    if not found and not mounts:
        yield Finding("Starting", claim.message, remedy("PodsReady", "Starting"))


def _words_about_missing(seen: Seen, roles: PodNames) -> str:
    """Why pods are not made, as whoever refused them has told the StatefulSet."""
    observed = Observed(pods=seen.pods or ())
    short = {workload_name(seen.job.name, role) for role, _ in missing_pods(roles, observed)}
    words = [
        one.message
        for one in seen.warnings
        if one.kind == "StatefulSet" and one.name in short and one.reason == "FailedCreate"
    ]
    return f": {words[-1]}" if words else ""


def _mount_warnings(seen: Seen) -> list[str]:
    """Pods that wait for a volume: a Secret, a ConfigMap or a claim that cannot be mounted."""
    waiting = {
        pod.name: pod for pod in seen.pods or () if pod.waiting_reason == "ContainerCreating"
    }
    words = {
        one.name: one.message
        for one in seen.warnings
        if one.name in waiting and one.reason in {"FailedMount", "FailedAttachVolume"}
    }
    lines = [f"{waiting[name].role}: pod {name}: {text}" for name, text in words.items()]
    return [f"{lines[0]} (and {len(lines) - 1} more)"] if len(lines) > 1 else lines


def _losses(seen: Seen, *, every: bool = False) -> Iterator[Finding]:
    """What has ended of late, one finding a role and kind of end, the latest first."""
    groups: dict[tuple[str, str], list[FailureRecord]] = {}
    for record in reversed(seen.job.status.failures):
        if every or _age(record, seen) < RECENT_SECONDS:
            groups.setdefault((record.role, record.reason), []).append(record)
    for (role, reason), records in groups.items():
        last = records[0]
        age = duration(_age(last, seen))
        times = f"{len(records)} times, last " if len(records) > 1 else ""
        message = f": {last.message}" if last.message else ""
        what = (
            f"{role}: pod {last.pod} ended {times}{age} ago at step {last.step}: {reason}{message}"
        )
        yield Finding(reason, what, f"{last.kind}: {remedy('Ended', last.kind)}")


def _age(record: FailureRecord, seen: Seen) -> float:
    return (seen.now - from_rfc3339(record.time)).total_seconds()


def _rendezvous(seen: Seen) -> Iterator[Finding]:
    met = condition(seen.job.status, "Rendezvoused")
    if met is None or met.status == "True" or met.reason == "Stopped":
        return
    late = [(pod, report) for pod in seen.pods or () if (report := seen.reports.get(pod.uid))]
    late = [(pod, report) for pod, report in late if report.phase not in {"ready", "done"}]
    if late:
        pod, report = late[0]
        words = f": {report.reason}" if report.reason else ""
        more = f" (and {len(late) - 1} more)" if len(late) > 1 else ""
        what = f"{pod.role}: pod {pod.name}: its ranks are {report.phase}{words}{more}"
        yield Finding("RanksMissing", what, remedy("Found", "RanksMissing"))
    elif holds(seen.job.status, "PodsReady"):
        yield _of_condition("Rendezvoused", met)


def _stale_step(seen: Seen) -> Iterator[Finding]:
    training = seen.job.status.training
    if training is None or seen.progressed is None or not holds(seen.job.status, "Training"):
        return
    silence = (seen.now - seen.progressed).total_seconds()
    each = _seconds_a_step(training)
    if silence > max(STALE_SECONDS, _STALE_STEPS * (each or 0.0)):
        usual = f"; a step took about {duration(each)}" if each else ""
        what = f"nothing new from the controller for {duration(silence)} since step"
        yield Finding("StepStale", f"{what} {training.step}{usual}", remedy("Found", "StepStale"))


def _seconds_a_step(training: TrainingStatus) -> float | None:
    left = (training.total_steps or 0) - training.step
    seconds = seconds_of(training.eta) if training.eta else None
    return seconds / left if seconds is not None and left > 0 else None


def _deadline(seen: Seen) -> Iterator[Finding]:
    job, training = seen.job, seen.job.status.training
    left = deadline_in(job, seen.now)
    if left is None:
        return
    needed = seconds_of(training.eta) if training is not None and training.eta else None
    if needed is not None and needed > left:
        what = f"its deadline is in {duration(left)}, and the rest takes about {duration(needed)}"
    elif left < DEADLINE_SECONDS:
        what = f"its deadline is in {duration(left)}"
    else:
        return
    yield Finding("DeadlineNear", what, remedy("Found", "DeadlineNear"))


def _roles(job: Job) -> PodNames:
    if job.manifest is None:
        return accepted_pods(job)
    return wanted_pods(resolve(job.manifest).topology)


def _of_condition(name: ConditionType, said: Condition) -> Finding:
    return Finding(said.reason, said.message or said.reason, remedy(name, said.reason))
