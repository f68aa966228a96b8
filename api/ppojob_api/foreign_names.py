"""Names in verl, TRL and OpenRLHF for fields of a job, and one table of words.

They are in foreign_names.txt, which says how to read its lines. Messages, `ppojob fields` and
docs/fields.md answer from them; a test holds docs/from-verl.md to them.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final

from ppojob_api import shape as shapes

NOT_YET: Final = "not yet"
NOT_NEEDED: Final = "not needed"

FRAMEWORKS: Final = ("verl", "TRL", "OpenRLHF")
_TOLD: Final = re.compile(rf"(?:^|\. )({'|'.join(FRAMEWORKS)}): ([a-z][\w.]*\w)(?=[,.;]|$)")
"""What the docstring of a field says that another framework calls it."""


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table, the names as the other framework writes them."""

    names: tuple[str, ...]
    here: tuple[str, ...]  # fields or a word; empty where `status` says why there is none
    remark: str  # what to know besides, as it follows a comma
    status: str  # NOT_YET, NOT_NEEDED, or empty


@cache
def fields() -> dict[str, tuple[Row, ...]]:
    """The rows by framework: those of the table, then those that docstrings of the models give.

    A name that several frameworks have stands with the first of them.
    """
    tables = {name: tuple(map(_row, _tables()[name])) for name in FRAMEWORKS}
    names = {name for rows in tables.values() for row in rows for name in row.names}
    return {name: (*rows, *_of_models(name, rows, names)) for name, rows in tables.items()}


@cache
def words() -> dict[str, list[Row]]:
    """The rows of words, by the fields that take them."""
    found: dict[str, list[Row]] = {}
    for line in _tables()["words"]:
        fields, _, rest = line.partition(" | ")
        for field in fields.split():
            found.setdefault(field, []).append(_row(rest))
    return found


@cache
def sections() -> frozenset[str]:
    """Names of verl's sections, in which its table or the models know more names."""
    names = [
        *(name for line in _tables()["verl"] for name in _row(line).names),
        *_told("verl"),
    ]
    return frozenset(part for name in names for part in name.split(".")[:-1])


@cache
def _tables() -> dict[str, list[str]]:
    """The lines of each table by its heading; what has no columns is prose."""
    text = resources.files("ppojob_api").joinpath("foreign_names.txt").read_text(encoding="utf-8")
    _, *parts = text.split("\n## ")
    named = (part.partition("\n") for part in parts)
    return {
        name: [line for line in lines.splitlines() if " | " in line] for name, _, lines in named
    }


def _told(framework: str) -> dict[str, str]:
    """A framework's names in the docstrings of the models, each with the first field."""
    told: dict[str, str] = {}
    for path, member in shapes.fields():
        for name in (one[2] for one in _TOLD.finditer(member.description) if one[1] == framework):
            told.setdefault(name, path)
    return told


def _of_models(framework: str, table: tuple[Row, ...], names: set[str]) -> Iterator[Row]:
    """Rows of docstrings, for fields that the table does not have; adds their names to `names`.

    A name is its last word, or if another field has that as many words as it takes.
    """
    fields = {field for row in table for field in row.here}
    for full, path in _told(framework).items():
        words = full.split(".")
        tails = (".".join(words[-length:]) for length in range(1, len(words) + 1))
        name = next((tail for tail in tails if tail not in names), None)
        if name is not None and path not in fields:
            names.add(name)
            yield Row((name,), (path,), "", "")


def _row(line: str) -> Row:
    names, here, remark = (part.strip() for part in f"{line} | ".split(" | ")[:3])
    status = here if here in {NOT_YET, NOT_NEEDED} else ""
    return Row(tuple(names.split()), () if status else tuple(here.split()), remark, status)
