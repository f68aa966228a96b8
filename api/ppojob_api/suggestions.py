"""Suggestions for an unknown field or word.

Names of other frameworks are looked up in a table; similar spelling counts only for our own names.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain
from typing import Final, NamedTuple

from ppojob_api import foreign_names
from ppojob_api import shape as shapes
from ppojob_api.foreign_names import NOT_NEEDED, NOT_YET, Row
from ppojob_api.problem import ReasonCode
from ppojob_api.shape import PathKey, Shape
from ppojob_api.v1alpha1.job import PPOJobSpec

# Similarity from which a word counts as a misspelling of another, and from which it does although
# another section has a field of exactly this name.
NEAR: Final = 0.75
NEARER: Final = 0.8

# Shortest part of a name that finds the whole name, and how many names it may match.
SHORTEST_PART: Final = 6
LISTED_PARTS: Final = 3


_OF_ROLES: Final = {
    "critic": {
        "spec.optimizer": "spec.critic.optimizer",
        "spec.model.lora": "spec.critic.lora",
        "spec.roles.actorRollout": "spec.roles.critic",
    },
    "ref": {"spec.roles.actorRollout": "spec.roles.reference"},
}
"""Sections of the policy, and those that a name below `critic` or `ref` means instead."""


class Suggestion(NamedTuple):
    """What is wrong with a name, and what to write instead."""

    why: str
    allowed: str
    reason_code: ReasonCode = ReasonCode.UNKNOWN_FIELD


def of_field(path: PathKey, value: object) -> Suggestion:
    """What to write for a field that does not exist."""
    word, why = folded(str(path[-1])), "there is no such field"
    here = {folded(name): name for name in shapes.members_at(path[:-1])}
    row = None if word in here else foreign_field(path)
    if row is not None:
        return _of_row(row, value)
    if len(path) == 1 and shapes.at(("spec", *path)) is not None:
        return Suggestion(why, f"write {_below_spec(path, value)}")
    others = list(shapes.all_paths(PPOJobSpec, "spec."))
    elsewhere = [other for other in others if folded(other.rpartition(".")[2]) == word]
    cutoff = NEARER if elsewhere else NEAR
    near = difflib.get_close_matches(word, here, n=1, cutoff=cutoff)
    if near:
        return Suggestion(why, f"write {shapes.dotted((*path[:-1], here[near[0]]))}")
    section = ".".join(key for key in path[:-1] if isinstance(key, str))
    inside = [other for other in elsewhere if shapes.within(other, section)]
    if elsewhere:
        inside = inside or _beside(section, elsewhere)
        return Suggestion(why, f"write {' or '.join(inside or elsewhere)}")
    below = [other for other in others if not section or shapes.within(other, section)]
    parts = [other for other in below if word in folded(other.rpartition(".")[2])]
    if len(word) >= SHORTEST_PART and 0 < len(parts) <= LISTED_PARTS:
        return Suggestion(why, f"write {' or '.join(parts)}")
    names = ", ".join(sorted(here.values()))
    return Suggestion(why, f"fields here are {names}" if names else "remove it")


def _below_spec(path: PathKey, value: object) -> str:
    """The field of a path that lacks `spec`, with the keys of a value that has one of each."""
    whole = ("spec", *path)
    while isinstance(value, dict) and len(value) == 1:
        (key, value), *_ = value.items()
        if shapes.at((*whole, key)) is None:
            break
        whole = (*whole, key)
    return shapes.dotted(whole)


def _beside(section: str, fields: list[str]) -> list[str]:
    """The one of these fields in the nearest section above, if it is the only one there."""
    while (section := section.rpartition(".")[0]) not in {"", "spec"}:
        if near := [field for field in fields if shapes.within(field, section)]:
            return near if len(near) == 1 else []
    return []


def of_word(field: str, value: object, shape: Shape) -> Suggestion:
    """What to write for a word that a field (a path without indices) does not accept."""
    why, code = "the value is unknown", ReasonCode.NOT_ONE_OF
    if not isinstance(value, str):
        return Suggestion(why, shape.allowed(), code)
    word = folded(value)
    by_folded = {folded(choice): choice for choice in shape.choices}
    row = None if word in by_folded else foreign_word(field, value)
    own = " (custom: a Python function of one's own)" if "custom" in by_folded else ""
    allowed = shape.allowed() + own
    if row is None:
        near = difflib.get_close_matches(word, by_folded, n=1, cutoff=NEAR)
        why += f", did you mean {by_folded[near[0]]}" if near else ""
        return Suggestion(why, allowed, code)
    if row.status == NOT_YET:
        return Suggestion("not in this version", allowed, ReasonCode.NOT_IN_THIS_VERSION)
    if row.status == NOT_NEEDED:
        return Suggestion(f"not needed: {row.remark}", "remove it", code)
    return Suggestion(why, _with_remark(f"write {row.here[0]}", row), code)


def leaves(path: PathKey, value: object) -> list[tuple[PathKey, object]]:
    """The fields below an unknown field, if a section of another framework was copied here.

    Returns:
        Each inner field and its value, or nothing if none of them is in the table.
    """
    found = list(_leaves(path, value))
    return found if any(foreign_field(inner) for inner, _ in found if inner != path) else []


def foreign_field(path: Sequence[object]) -> Row | None:
    """The row of a field of another framework, in any section."""
    keys = [key for key in path if isinstance(key, str)]
    parts = [folded(part) for key in keys for part in key.split(".")] or [""]
    fits = [(c, row) for c, row in _by_last_word().get(parts[-1], ()) if _has(parts[:-1], c)]
    if not fits:
        return None
    context, row = max(fits, key=lambda fit: len(fit[0]))
    for role, sections in _OF_ROLES.items():
        if role in parts[:-1] and role not in context:
            here = (_moved(field, sections) for field in row.here)
            row = replace(row, here=tuple(here))
    return row


def _moved(field: str, sections: Mapping[str, str]) -> str:
    """The field of another section, if that has it too."""
    for ours, theirs in sections.items():
        moved = theirs + field.removeprefix(ours)
        if shapes.within(field, ours) and moved in _all_fields():
            return moved
    return field


@cache
def _all_fields() -> frozenset[str]:
    return frozenset(shapes.all_paths())


def foreign_word(field: str, word: str) -> Row | None:
    """The row of a word of another framework."""
    rows = foreign_names.words().get(field, ())
    return next((row for row in rows if folded(word) in map(folded, row.names)), None)


def folded(word: str) -> str:
    """A word in one spelling for snake_case, kebab-case, camelCase, and 0 for o."""
    return word[:128].lower().replace("_", "").replace("-", "").replace("0", "o")


def _of_row(row: Row, value: object) -> Suggestion:
    if row.status == NOT_YET:
        why = f"{row.remark}: not in this version" if row.remark else "not in this version"
        return Suggestion(why, "remove it", ReasonCode.NOT_IN_THIS_VERSION)
    if row.status == NOT_NEEDED:
        return Suggestion(f"not needed: {row.remark}", "remove it")
    allowed = f"write {' or '.join(row.here)}"
    meant = foreign_word(row.here[0], value) if isinstance(value, str) else None
    if meant is not None and meant.here:
        allowed, row = f"{allowed}: {meant.here[0]}", meant
    elif meant is not None and meant.status == NOT_YET:
        allowed += f", where {value} is not in this version"
    return Suggestion("there is no such field", _with_remark(allowed, row))


def _with_remark(text: str, row: Row) -> str:
    return f"{text}, {row.remark}" if row.remark else text


@cache
def _by_last_word() -> dict[str, list[tuple[list[str], Row]]]:
    """The rows by the last word of each name, with the words before it."""
    found: dict[str, list[tuple[list[str], Row]]] = {}
    for row in chain(*foreign_names.fields().values()):
        for name in row.names:
            *before, last = map(folded, name.split("."))
            found.setdefault(last, []).append((before, row))
    return found


def _has(parts: list[str], words: list[str]) -> bool:
    """Whether a path has these words, in their order."""
    rest = iter(parts)
    return all(word in rest for word in words)


def _leaves(path: PathKey, value: object) -> Iterable[tuple[PathKey, object]]:
    is_known = foreign_field(path) is not None
    if not isinstance(value, dict) or not value or (is_known and not _is_section(path)):
        yield path, value
        return
    inner = [leaf for key, each in value.items() for leaf in _leaves((*path, str(key)), each)]
    if is_known and any(foreign_field(leaf) is None for leaf, _ in inner):
        # The row of the section applies to keys of it that the table does not have.
        yield path, value
        inner = [leaf for leaf in inner if foreign_field(leaf[0]) is not None]
    yield from inner


def _is_section(path: PathKey) -> bool:
    return folded(str(path[-1]).rpartition(".")[2]) in map(folded, foreign_names.sections())
