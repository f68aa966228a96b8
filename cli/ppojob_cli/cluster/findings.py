"""Reasons why a job makes no progress, the most important first. Pure."""

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
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
from ppojob_operator.policies import startup
from ppojob_operator.policies.ending import deadline_in
from ppojob_operator.state import ControllerReport, Job, Node, Observed, Pod, Time

UNKNOWN: Final = "reasons.md, of the version of the operator"
_SILENT_LEASES: Final = 3
"""A Lease that was not renewed for so many of its terms has no holder."""
_BEHIND_SECONDS: Final = 30.0
"""A job that no operator has looked at for so long waits for one."""
_RECENT_SECONDS: Final = 600.0
"""A loss is news for so long."""
_STALE_SECONDS: Final = 300.0
"""A step may take so long without a word, or three times what others took."""
_STALE_STEPS: Final = 3
_DEADLINE_SECONDS: Final = 600.0
"""A deadline is near from then on."""

_WIDTH: Final = 100
_HEADING: Final = re.compile(r"^## (?=(\w+))", re.MULTILINE)
_ROW: Final = re.compile(r"^\| (`[^|]+) \| (?:[^|]+ \| )?(.+) \|$", re.MULTILINE)
_SEEN_IN_PODS: Final = frozenset(
    {
        "Starting",
        "NodeLost",
        "ImageUnavailable",
        "Unschedulable",
        "ContainerWaiting",
        "PodFailed",
        "PodsDenied",
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


def explanation(seen: Seen) -> Iterator[str]:
    """What was found, as lines."""
    found = findings(seen)
    yield f"{seen.job.name}: {_summary(seen, len(found))}"
    for number, one in enumerate(found, start=1):
        yield ""
        yield from _wrapped(f"{number}. {one.reason}: {one.what}", "", "   ")
        yield from _wrapped(one.remedy, "   -> ", "      ")
    if seen.hidden:
        yield ""
    for line in seen.hidden:
        yield from _wrapped(f"not looked at: {line}", "", "  ")


def _summary(seen: Seen, number: int) -> str:
    status = seen.job.status
    training = status.training
    step = f" at step {training.step} of {training.total_steps or '?'}" if training else ""
    where = f"{status.phase}{step}"
    if status.phase == "Succeeded":
        return f"{where}: done"
    if not number:
        return f"{where}: nothing that can be seen holds it up"
    return f"{where}: {counted(number, 'thing')} to know"


def _wrapped(text: str, first: str, rest: str) -> list[str]:
    # Words of a log or of a path are kept whole, so that they can be searched for.
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

    `heading` is a condition, `Found` for what is in none, or `Ended` for the class of a failure.
    """
    # A job may fail by the reason of another condition: one that was never accepted.
    places = (tables().get(heading, {}), *tables().values())
    return next((table[reason] for table in places if reason in table), UNKNOWN)


def findings(seen: Seen) -> list[Finding]:
    """Every reason why the job does not go on; none where it does, or is done."""
    status = seen.job.status
    if holds(status, "Complete"):
        return []
    if seen.job.is_deleting:
        return [_found("Deleting", "the job is being deleted")]
    if holds(status, "Failed"):
        return [*_of_condition(seen, "Failed"), *_losses(seen, every=True)]
    found = [*_operator(seen), *_accepted(seen)]
    suspended = condition(status, "Suspended")
    if suspended is not None and (suspended.status == "True" or suspended.reason == "Suspending"):
        return [*found, *_of_condition(seen, "Suspended")]
    return [
        *found,
        *_admitted(seen),
        *_pods(seen),
        *_memory_limits(seen),
        *_losses(seen),
        *_rendezvous(seen),
        *_stale_step(seen),
        *_deadline(seen),
    ]


def _found(reason: str, what: str, heading: str = "Found") -> Finding:
    return Finding(reason, what, remedy(heading, reason))


def _of_condition(seen: Seen, name: ConditionType) -> Iterator[Finding]:
    """What a condition says itself."""
    said = condition(seen.job.status, name)
    if said is not None:
        yield _found(said.reason, said.message or said.reason, name)


def _first(lines: Sequence[str]) -> str:
    """The first of some lines, and how many there are beside it."""
    return lines[0] + (f" (and {len(lines) - 1} more)" if len(lines) > 1 else "")


def _operator(seen: Seen) -> Iterator[Finding]:
    lease, job = seen.lease, seen.job
    if lease is not None:
        silence = (seen.now - lease.renewed).total_seconds() if lease.renewed else None
        if silence is None or not lease.holder or silence > _SILENT_LEASES * lease.seconds:
            since = "never" if silence is None else f"{duration(silence)} ago"
            yield _found("OperatorSilent", f"no operator leads: its Lease was renewed last {since}")
            return
    looked = job.status.observed_generation
    age = (seen.now - job.created).total_seconds()
    if looked is None and age > _BEHIND_SECONDS:
        what = f"no operator has looked at the job in the {duration(age)} that it is there"
        yield _found("OperatorBehind", what)
    elif looked not in {None, job.generation}:
        what = f"the job was edited ({job.generation} times), the operator has seen {looked}"
        yield _found("OperatorBehind", what)


def _accepted(seen: Seen) -> Iterator[Finding]:
    accepted, problems = condition(seen.job.status, "Accepted"), seen.job.problems
    if accepted is not None and accepted.status != "True":
        yield from _of_condition(seen, "Accepted")
    elif problems:
        said = acceptance(problems)
        # What an operator has accepted is newer than this command line alone.
        if accepted is None or said.reason != "NewerSpec":
            yield _found(said.reason, said.message, "Accepted")


def _admitted(seen: Seen) -> Iterator[Finding]:
    status = seen.job.status
    admitted, accepted = condition(status, "Admitted"), condition(status, "Accepted")
    # A job without pods whose spec is refused says why twice.
    is_told = admitted is not None and accepted is not None and accepted.reason == admitted.reason
    if admitted is not None and admitted.status == "False" and not is_told:
        yield from _of_condition(seen, "Admitted")


def _pods(seen: Seen) -> Iterator[Finding]:
    """From the pods themselves, which know more than one reason, and are newer than the status."""
    ready, roles = condition(seen.job.status, "PodsReady"), _roles(seen.job)
    known = _SEEN_IN_PODS if seen.pods is not None and roles else frozenset()
    denials = _denials(seen, roles)
    # Who may not read events has it from the operator alone.
    is_told = ready is not None and ready.reason == "PodsDenied" and not denials
    if is_told:
        known -= {"PodsDenied"}
    if ready is not None and ready.status == "False" and ready.reason not in {*known, "Stopped"}:
        yield from _of_condition(seen, "PodsReady")
    # Before the operator has seen the job nobody is to have made any.
    is_due = holds(seen.job.status, "Admitted")
    if seen.pods is None or not roles or not (seen.pods or is_due):
        return
    observed = Observed(pods=seen.pods, nodes=seen.nodes, denials=denials)
    claim = startup.pods_ready(roles, observed, float("inf"))
    if claim.holds:
        return
    found = [
        _found(reason, _first(lines), "PodsReady")
        for reason, lines in startup.obstacles(roles, observed)
        if lines and not (is_told and reason == "PodsMissing")
    ]
    if mounts := _mount_warnings(seen):
        found.append(_found("ContainerWaiting", _first(mounts), "PodsReady"))
    yield from found or ([] if is_told else [_found("Starting", claim.message, "PodsReady")])


def _denials(seen: Seen, roles: startup.PodNames) -> dict[RoleName, str]:
    """Why pods are not made, as whoever refused them has told the StatefulSet."""
    sets = {workload_name(seen.job.name, role): role for role in roles}
    return {
        sets[one.name]: one.message
        for one in seen.warnings
        if one.kind == "StatefulSet" and one.name in sets and one.reason == "FailedCreate"
    }


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
    return [f"{waiting[name].role}: pod {name}: {text}" for name, text in words.items()]


def _memory_limits(seen: Seen) -> Iterator[Finding]:
    """Memory limits that the job does not set: most often those of a LimitRange."""
    if seen.job.manifest is None:
        return
    settings = seen.job.manifest.spec.pods
    lines = [
        f"{pod.role}: pod {pod.name}: memory limit {pod.memory_limit}, which the job does not set"
        for pod in seen.pods or ()
        if pod.memory_limit and settings_of(settings, pod.role).memory is None
    ]
    if lines:
        yield _found("MemoryLimited", _first(lines))


def _losses(seen: Seen, *, every: bool = False) -> Iterator[Finding]:
    """What has ended of late, one finding a role and kind of end, the latest first."""
    groups: dict[tuple[str, str], list[FailureRecord]] = {}
    for record in reversed(seen.job.status.failures):
        if every or _age(record, seen) < _RECENT_SECONDS:
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
    late = [
        f"{pod.role}: pod {pod.name}: its ranks are {report.phase}"
        + (f": {report.reason}" if report.reason else "")
        for pod in seen.pods or ()
        if (report := seen.reports.get(pod.uid)) and report.phase not in {"ready", "done"}
    ]
    if late:
        yield _found("RanksMissing", _first(late))
    elif holds(seen.job.status, "PodsReady"):
        yield from _of_condition(seen, "Rendezvoused")


def _stale_step(seen: Seen) -> Iterator[Finding]:
    training = seen.job.status.training
    if training is None or seen.progressed is None or not holds(seen.job.status, "Training"):
        return
    silence = (seen.now - seen.progressed).total_seconds()
    missing, rest = (training.total_steps or 0) - training.step, _seconds_left(seen)
    each = rest / missing if rest is not None and missing > 0 else None
    if silence > max(_STALE_SECONDS, _STALE_STEPS * (each or 0.0)):
        usual = f"; a step took about {duration(each)}" if each else ""
        what = f"nothing new from the controller for {duration(silence)} since step"
        yield _found("StepStale", f"{what} {training.step}{usual}")


def _deadline(seen: Seen) -> Iterator[Finding]:
    left, needed = deadline_in(seen.job, seen.now), _seconds_left(seen)
    if left is None:
        return
    what = f"its deadline is in {duration(left)}"
    if needed is not None and needed > left:
        yield _found("DeadlineNear", f"{what}, and the rest takes about {duration(needed)}")
    elif left < _DEADLINE_SECONDS:
        yield _found("DeadlineNear", what)


def _seconds_left(seen: Seen) -> int | None:
    """How long the rest of the job takes, as its controller reckons."""
    training = seen.job.status.training
    return seconds_of(training.eta) if training is not None and training.eta else None


def _roles(job: Job) -> startup.PodNames:
    if job.manifest is None:
        return startup.accepted_pods(job)
    return startup.wanted_pods(resolve(job.manifest).topology)
