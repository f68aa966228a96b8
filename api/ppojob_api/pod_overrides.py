"""Which parts of a pod a job may override: an allow-list, read at admission and by the operator.

An author who may make jobs need not be allowed to make pods, so nothing here reaches the node,
another identity, or a weaker sandbox. What has a field of its own is not repeated here.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from ppojob_api.problem import Problem, ReasonCode, shown
from ppojob_api.well_known import RESERVED_PREFIX

ALLOWED: Final = (
    "metadata.annotations",
    "metadata.labels",
    "spec.dnsConfig",
    "spec.hostAliases",
    "spec.preemptionPolicy",
    "spec.readinessGates",
    "spec.resourceClaims",
    "spec.schedulerName",
    "spec.schedulingGates",
)
"""Paths in a pod template; a map is merged by key, anything else is set."""

_MAPS: Final = ("metadata.annotations", "metadata.labels")


def refusals(overrides: Mapping[str, object], where: str) -> Iterator[Problem]:
    """What is not allowed in a partial pod template.

    Args:
        overrides: the value of `podOverrides`.
        where: its spec path.
    """
    for part, value in overrides.items():
        if part not in {"metadata", "spec"}:
            yield _forbidden(f"{where}.{part}", value)
        elif not isinstance(value, dict):
            yield Problem(
                f"{where}.{part}",
                shown(value),
                "it is no object",
                "an object",
                ReasonCode.WRONG_TYPE,
            )
        else:
            yield from _part_refusals(part, value, where)


def _part_refusals(part: str, value: Mapping[str, object], where: str) -> Iterator[Problem]:
    for name, inside in value.items():
        path = f"{part}.{name}"
        if path not in ALLOWED:
            yield _forbidden(f"{where}.{path}", inside)
        elif path in _MAPS:
            yield from _map_refusals(inside, f"{where}.{path}")


def _map_refusals(value: object, where: str) -> Iterator[Problem]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        yield Problem(
            where,
            shown(value),
            "keys and values are text",
            "an object of text",
            ReasonCode.WRONG_TYPE,
        )
        return
    for key in value:
        if key.startswith(RESERVED_PREFIX):
            why = f"keys that begin with {RESERVED_PREFIX} belong to the operator"
            yield Problem(where, shown(key), why, "a prefix of your own", ReasonCode.FORBIDDEN)


def _forbidden(where: str, value: object) -> Problem:
    why = "a job may not override this part of a pod"
    return Problem(where, shown(value), why, f"one of {', '.join(ALLOWED)}", ReasonCode.FORBIDDEN)
