"""Which parts of a pod a job may override: an allow-list, read at admission and by the operator.

An author who may make jobs need not be allowed to make pods, so nothing here reaches the node,
another identity, or a weaker sandbox. What has a field of its own is not repeated here.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from ppojob_api.problem import Problem, ReasonCode, shown
from ppojob_api.v1alpha1.kubernetes_names import (
    LABEL_KEY_WORDS,
    LABEL_VALUE_WORDS,
    is_label_key,
    is_label_value,
)
from ppojob_api.well_known import RESERVED_PREFIX

ALLOWED: Final[Mapping[str, type]] = {
    "metadata.annotations": dict,
    "metadata.labels": dict,
    "spec.dnsConfig": dict,
    "spec.hostAliases": list,
    "spec.preemptionPolicy": str,
    "spec.readinessGates": list,
    "spec.schedulerName": str,
    "spec.schedulingGates": list,
}
"""Paths in a pod template and what they hold; a map is merged by key, anything else is set.

Claims of devices are not among them: no field here gives one to the container.
"""

_KINDS: Final[Mapping[type, str]] = {dict: "an object", list: "a list", str: "text"}


def refusals(overrides: Mapping[str, object], where: str) -> Iterator[Problem]:
    """What is not allowed in a partial pod template, the value of `podOverrides` at this path."""
    for part, value in overrides.items():
        if part not in {"metadata", "spec"}:
            yield _forbidden(f"{where}.{part}", value)
        elif not isinstance(value, dict):
            yield _wrong_type(f"{where}.{part}", value, dict)
        else:
            yield from _part_refusals(part, value, where)


def _part_refusals(part: str, value: Mapping[str, object], where: str) -> Iterator[Problem]:
    for name, inside in value.items():
        path = f"{part}.{name}"
        if path not in ALLOWED:
            yield _forbidden(f"{where}.{path}", inside)
        elif not isinstance(inside, ALLOWED[path]):
            yield _wrong_type(f"{where}.{path}", inside, ALLOWED[path])
        elif part == "metadata" and isinstance(inside, dict):
            yield from _map_refusals(inside, name, f"{where}.{path}")


def _map_refusals(items: Mapping[str, object], kind: str, where: str) -> Iterator[Problem]:
    """What no label or annotation may be, or none of a job's author."""
    for key, value in items.items():
        place = f"{where}[{shown(key)}]"
        if not is_label_key(key):
            got, why = shown(key), f"it is not the name of one of the {kind}"
            yield Problem(where, got, why, LABEL_KEY_WORDS, ReasonCode.BAD_FORM)
        elif key.startswith(RESERVED_PREFIX):
            why = f"keys that begin with {RESERVED_PREFIX} belong to the operator"
            yield Problem(where, shown(key), why, "a prefix of your own", ReasonCode.FORBIDDEN)
        elif not isinstance(value, str):
            yield _wrong_type(place, value, str)
        elif kind == "labels" and not is_label_value(value):
            why = "it is not the value of a label"
            yield Problem(place, shown(value), why, LABEL_VALUE_WORDS, ReasonCode.BAD_FORM)


def _wrong_type(where: str, value: object, kind: type) -> Problem:
    words = _KINDS[kind]
    return Problem(where, shown(value), f"it is not {words}", words, ReasonCode.WRONG_TYPE)


def _forbidden(where: str, value: object) -> Problem:
    why = "a job may not override this part of a pod"
    return Problem(where, shown(value), why, f"one of {', '.join(ALLOWED)}", ReasonCode.FORBIDDEN)
