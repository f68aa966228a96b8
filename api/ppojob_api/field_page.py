"""Every field of a job: docs/fields.md is `python -m ppojob_api.field_page`.

The types, defaults and docstrings of the models say it all; names of other frameworks are those of
`foreign_names`.
"""

import re
import sys
from collections.abc import Iterable, Iterator

from ppojob_api import foreign_names
from ppojob_api import shape as shapes
from ppojob_api.foreign_names import Row
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


def page() -> str:
    """The whole page."""
    return "\n".join([_HEAD, *_sections(), _NAMES, *_foreign()])


def _sections() -> Iterator[str]:
    """A table for metadata, for what stands in spec by itself, and for each section of spec."""
    tables: dict[str, list[tuple[str, Member]]] = {"metadata": [], "spec": []}
    for path, member in shapes.fields():
        root, *below = re.findall(r"\w+", path)
        if root in tables and below:
            name = f"{root}.{below[0]}" if root == "spec" else root
            tables.setdefault(name, []).append((path, member))
    for name in [name for name, rows in tables.items() if len(rows) == 1]:
        tables["spec"] += tables.pop(name)
    for name, rows in tables.items():
        yield f"## {name}\n"
        if rows[0][0] == name:
            _, own = rows.pop(0)
            yield f"{own.meaning} Takes {own.takes}.\n"
        yield _table("field | takes | default | meaning | verl", (_cells(*row) for row in rows))


def _cells(path: str, member: Member) -> list[str]:
    takes = member.shape.words().removeprefix("write ")
    default = re.sub("^default (.*)", r"`\1`", member.default_words)
    return [f"`{path}`", takes, default, member.meaning, member.verl]


def _foreign() -> Iterator[str]:
    for name, rows in foreign_names.fields().items():
        yield _table(f"{name} | PPOJob | remark", (_foreign_cells(row, row.here) for row in rows))
    words = [
        [f"`{field}`", *_foreign_cells(row, row.here)]
        for field, rows in foreign_names.words().items()
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
