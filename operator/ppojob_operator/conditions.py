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
    """A condition before its transition time is set.

    Attributes:
        holds: None: unknown.
        reason: CamelCase word; reasons.md of `kubectl ppojob` has a line for each.
    """

    type: ConditionType
    holds: bool | None
    reason: str
    message: str = ""


def rfc3339(time: Time) -> str:
    """A time as Kubernetes writes it, to the second."""
    return time.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def from_rfc3339(text: str) -> Time:
    """The time that `rfc3339`, or the API server, wrote.

    Raises:
        ValueError: it is no time.
    """
    return datetime.datetime.fromisoformat(text).astimezone(datetime.UTC)


def event_time(event: Manifest) -> str:
    """When an Event was seen last, in any of the ways in which that is written."""
    series = (event.get("series") or {}).get("lastObservedTime")
    times = (series, event.get("lastTimestamp"), event.get("eventTime"))
    return next((str(time) for time in times if time), "")


def inert(text: str) -> str:
    """Text of others, fit for a status: one line, printable, not endless."""
    line = " ".join(text.split())
    if not line.isprintable():
        line = "".join(letter if letter.isprintable() else "?" for letter in line)
    return line if len(line) <= MESSAGE_LIMIT else line[: MESSAGE_LIMIT - 3] + "..."


def acceptance(problems: tuple[Problem, ...]) -> ObservedCondition:
    """Return the condition Accepted: the spec is valid, invalid, or newer than this operator.

    The API server drops fields that its schema does not have, and writes defaults of those that it
    has. So an unknown field is of a newer resource, as in the middle of an upgrade, and other
    problems may be too: a newer operator will decide.
    """
    if not problems:
        return ObservedCondition("Accepted", True, "Valid")
    newer = tuple(
        replace(one, why="it is newer than this operator", allowed="wait, or upgrade the operator")
        for one in problems
        if one.reason_code is ReasonCode.UNKNOWN_FIELD
    )
    message = inert("; ".join(str(one) for one in newer or problems))
    if newer:
        return ObservedCondition("Accepted", None, "NewerSpec", message)
    return ObservedCondition("Accepted", False, INVALID, message)


def set_conditions(
    before: tuple[Condition, ...], claims: tuple[ObservedCondition, ...], generation: int, now: Time
) -> tuple[Condition, ...]:
    """Return the conditions with transition times, in the order of `claims`.

    The time is that of the last change of status, so an unchanged claim gives an equal condition,
    and an unchanged status needs no write.
    """
    old = {condition.type: condition for condition in before}
    conditions = []
    for claim in claims:
        status: Literal["True", "False", "Unknown"] = "Unknown"
        if claim.holds is not None:
            status = "True" if claim.holds else "False"
        was = old.get(claim.type)
        since = was.last_transition_time if was and was.status == status else rfc3339(now)
        conditions.append(
            Condition(
                type=claim.type,
                status=status,
                reason=claim.reason,
                message=inert(claim.message),
                last_transition_time=since,
                observed_generation=generation,
            )
        )
    return tuple(conditions)


def condition(status: PPOJobStatus, name: ConditionType) -> Condition | None:
    """One condition, or None while nothing was said of it."""
    return next((one for one in status.conditions if one.type == name), None)


def holds(status: PPOJobStatus, name: ConditionType) -> bool:
    """Whether a condition is known to hold."""
    found = condition(status, name)
    return found is not None and found.status == "True"


def has_ended(status: PPOJobStatus) -> bool:
    """Whether the job has ended, well or not."""
    return holds(status, "Complete") or holds(status, "Failed")
