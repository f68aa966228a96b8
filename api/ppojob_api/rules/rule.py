"""A validation of the API server, and the words of CEL that many of them share."""

import json
from collections.abc import Iterable
from dataclasses import dataclass

from ppojob_api.shape import Member, members
from ppojob_api.v1alpha1.section import Section


@dataclass(frozen=True, slots=True)
class Rule:
    """One validation of the API server.

    Attributes:
        path: Section that the rule stands in; `self` is its value.
        expression: CEL; true for a good object.
        message: What is wrong and what is allowed.
        field: Member of the section that the message is about.
        reason: The API server's word: FieldValueInvalid or FieldValueForbidden.
    """

    path: str
    expression: str
    message: str
    field: str | None = None
    reason: str = "FieldValueInvalid"


def given(field: str) -> str:
    """CEL for "the optional field has a value"."""
    return f"has(self.{field})"


def either(field: str, otherwise: str) -> str:
    """CEL for the value of an optional field, or what stands for it where there is none."""
    return f"({given(field)} ? self.{field} : {otherwise})"


def implies(condition: str, consequence: str) -> str:
    """CEL for "if ... then ..."."""
    return f"!({condition}) || ({consequence})"


def words(choices: frozenset[str]) -> str:
    """CEL list of words, in a stable order."""
    return "[" + ", ".join(f"'{choice}'" for choice in sorted(choices)) + "]"


def untouched(model: type[Section], *, names: Iterable[str] = (), prefix: str = "") -> str:
    """CEL for "these fields have their defaults"; its literals are those of JSON.

    Args:
        model: The section that `self`, or its member `prefix`, is.
        names: Fields to look at; empty: all.
        prefix: Path of the section inside `self`, with a dot behind it.
    """
    fields = members(model)
    return " && ".join(_unset(fields[name], f"{prefix}{name}") for name in names or fields)


def _unset(field: Member, path: str) -> str:
    if field.default is None:
        return f"!{given(path)}"
    if field.shape.kind == "object" and field.shape.model is not None:
        return untouched(field.shape.model, prefix=f"{path}.")
    if field.shape.kind in {"list", "map"}:
        return f"self.{path}.size() == {len(field.default)}"
    return f"self.{path} == {json.dumps(field.default)}"
