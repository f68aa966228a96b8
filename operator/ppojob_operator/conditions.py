"""Conditions of a job's status, set once per reconcile. Pure."""

import datetime
from dataclasses import dataclass, replace
from typing import Literal

from ppojob_api.problem import Problem, ReasonCode
from ppojob_api.v1alpha1.status import Condition, PPOJobStatus
from ppojob_operator.state import Manifest, Time

ConditionType = Literal[
    "Accepted",
    "Admitted",
    "PodsReady",
    "Rendezvoused",
    "Training",
    "Checkpointed",
    "Suspended",
    "Complete",
    "Failed",
]

INVALID = "InvalidSpec"
MESSAGE_LIMIT = 1_024
"""Most characters of a message: logs and model output may be a megabyte long."""


@dataclass(frozen=True, slots=True)
class ObservedCondition:
    """A condition before its transition time is set."""

    type: ConditionType
    holds: bool | None  # None: unknown
    reason: str  # CamelCase word; cli/ppojob_cli/cluster/reasons.md explains each
    message: str = ""


def rfc3339(time: Time) -> str:
    """Format a time like Kubernetes, to the second."""
    return time.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def from_rfc3339(text: str) -> Time:
    """Parse a time of `rfc3339` or of the API server.

    Raises:
        ValueError: it is not a time.
    """
    return datetime.datetime.fromisoformat(text).astimezone(datetime.UTC)


def event_time(event: Manifest) -> str:
    """When an Event occurred last; the field depends on the version of the Events API."""
    series = (event.get("series") or {}).get("lastObservedTime")
    times = (series, event.get("lastTimestamp"), event.get("eventTime"))
    return next((str(time) for time in times if time), "")


def sanitized(text: str) -> str:
    """Sanitise text of other programs for the status: one line, printable, bounded."""
    line = " ".join(text.split())
    if not line.isprintable():
        line = "".join(letter if letter.isprintable() else "?" for letter in line)
    return line if len(line) <= MESSAGE_LIMIT else line[: MESSAGE_LIMIT - 3] + "..."


def acceptance(problems: tuple[Problem, ...]) -> ObservedCondition:
    """Return the condition Accepted: the spec is valid, invalid, or newer than this operator.

    The API server drops fields that are not in its schema. So a field that is unknown here belongs
    to a newer CRD, as during an upgrade, and other problems may too: a newer operator decides.
    """
    if not problems:
        return ObservedCondition("Accepted", True, "Valid")
    newer = tuple(
        replace(
            problem, why="it is newer than this operator", allowed="wait, or upgrade the operator"
        )
        for problem in problems
        if problem.reason_code is ReasonCode.UNKNOWN_FIELD
    )
    message = sanitized("; ".join(str(problem) for problem in newer or problems))
    if newer:
        return ObservedCondition("Accepted", None, "NewerSpec", message)
    return ObservedCondition("Accepted", False, INVALID, message)


def set_conditions(
    before: tuple[Condition, ...],
    observed: tuple[ObservedCondition, ...],
    generation: int,
    now: Time,
) -> tuple[Condition, ...]:
    """Return the observed conditions with transition times.

    The time changes only with the condition's status, so an unchanged job needs no status write.
    """
    old = {condition.type: condition for condition in before}
    conditions = []
    for one in observed:
        status: Literal["True", "False", "Unknown"] = "Unknown"
        if one.holds is not None:
            status = "True" if one.holds else "False"
        was = old.get(one.type)
        since = was.last_transition_time if was and was.status == status else rfc3339(now)
        conditions.append(
            Condition(
                type=one.type,
                status=status,
                reason=one.reason,
                message=sanitized(one.message),
                last_transition_time=since,
                observed_generation=generation,
            )
        )
    return tuple(conditions)


def condition(status: PPOJobStatus, name: ConditionType) -> Condition | None:
    """A condition of a status; None if it was never set."""
    return next((one for one in status.conditions if one.type == name), None)


def holds(status: PPOJobStatus, name: ConditionType) -> bool:
    """Whether a condition is true."""
    found = condition(status, name)
    return found is not None and found.status == "True"


def has_ended(status: PPOJobStatus) -> bool:
    """Whether the job is complete or has failed."""
    return holds(status, "Complete") or holds(status, "Failed")
