"""Every field of a job: docs/fields.md is `python -m ppojob_api.field_page`.

The types, defaults and docstrings of the models say it all; names of other frameworks are those of
`foreign_names`.
"""

import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ppojob_api import shape as shapes
from ppojob_api.foreign_names import FIELDS, WORDS, Row
from ppojob_api.shape import Member

_HEAD = """\
# Fields of a PPOJob

Made from the models by `python -m ppojob_api.field_page > docs/fields.md`. On a terminal
`ppojob fields spec.algorithm.kl` prints the same of one section. `[]` stands for any item of a
list; a field that is not given gets its default.

What the names mean together: [algorithms](algorithms.md), [data and rewards](data-and-rewards.md),
[operations](operations.md). At the end:
[names of verl, TRL and OpenRLHF](#names-of-other-frameworks).
"""

_NAMES = """\
## Names of other frameworks

What `ppojob validate` answers where a manifest has such a name. `critic.lr` is an `lr` below a
`critic`. A name that several frameworks have stands with the first; [from verl](from-verl.md) says
more of verl's.
"""


@dataclass(frozen=True, slots=True)
class Field:
    """A field and its place.

    Attributes:
        path: As people write it; `[]` stands for any item of a list.
        member: Type, default and meaning.
    """

    path: str
    member: Member

    @property
    def takes(self) -> str:
        """What may be written there; that it may be left out the default says."""
        return self.member.shape.words().removeprefix("write ")

    @property
    def default(self) -> str:
        """What it is where it is not given; empty for sections, and where the meaning says it."""
        if self.member.required:
            return "required"
        is_told = self.member.default is None or self.member.shape.kind == "object"
        return "" if is_told else json.dumps(self.member.default)

    @property
    def defaulting(self) -> str:
        """The default as it follows what it takes."""
        word = "" if self.default == "required" else "default "
        return f"; {word}{self.default}" if self.default else ""

    @property
    def meaning(self) -> str:
        """What it does, without what verl calls it."""
        return self._parts()[0]

    @property
    def verl(self) -> str:
        """What verl calls it and has as its default; empty where the models do not say."""
        return self._parts()[1]

    def _parts(self) -> tuple[str, str]:
        before, _, after = re.sub(r"(^|\. )verl: ", r"\1\0", self.member.description).partition(
            "\0"
        )
        return before.strip(), after.removesuffix(".")


def fields() -> Iterator[Field]:
    """Every field of a job, each section before what is in it."""
    return (Field(path, member) for path, member in shapes.fields())


def page() -> str:
    """The whole page."""
    return "\n".join([_HEAD, *_sections(), _NAMES, *_foreign()])


def _sections() -> Iterator[str]:
    """A table for metadata, for what stands in spec by itself, and for each section of spec."""
    tables: dict[str, list[Field]] = {"metadata": [], "spec": []}
    for field in fields():
        root, *below = re.findall(r"\w+", field.path)
        if root in tables and below:
            name = f"{root}.{below[0]}" if root == "spec" else root
            tables.setdefault(name, []).append(field)
    for name in [name for name, rows in tables.items() if len(rows) == 1]:
        tables["spec"] += tables.pop(name)
    for name, rows in tables.items():
        yield f"## {name}\n"
        if rows[0].path == name:
            own = rows.pop(0)
            yield f"{own.meaning} Takes {own.takes}{own.defaulting}.\n"
        yield _table("field | takes | default | meaning | verl", map(_cells, rows))


def _cells(field: Field) -> list[str]:
    default = field.default if field.default in {"", "required"} else f"`{field.default}`"
    return [f"`{field.path}`", field.takes, default, field.meaning, field.verl]


def _foreign() -> Iterator[str]:
    for name, rows in FIELDS.items():
        yield _table(f"{name} | PPOJob | remark", (_foreign_cells(row, row.here) for row in rows))
    words = [
        [f"`{field}`", *_foreign_cells(row, row.here)]
        for field, rows in WORDS.items()
        for row in rows
    ]
    yield _table("field | word elsewhere | here | remark", words)


def _foreign_cells(row: Row, here: Iterable[str]) -> list[str]:
    names = ", ".join(f"`{name}`" for name in row.names)
    return [names, row.status or ", ".join(f"`{one}`" for one in here), row.remark]


def _table(head: str, rows: Iterable[list[str]]) -> str:
    rule = " | ".join("---" for _ in head.split(" | "))
    lines = [" | ".join(cell.replace("|", "\\|") for cell in row) for row in rows]
    return "\n".join(f"| {line} |" for line in (head, rule, *lines)) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
