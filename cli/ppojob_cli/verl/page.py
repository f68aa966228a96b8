"""docs/from-verl.md, generated from the table of verl's keys: `python -m ppojob_cli.verl.page`."""

import itertools
import sys
from collections.abc import Iterator

from ppojob_api.foreign_names import NOT_YET
from ppojob_cli.verl.keys import Line, Section, find, head, main_name, sections


def page() -> str:
    """Generate the page."""
    return "\n".join([head(), *(_section(section) for section in sections())])


def _section(section: Section) -> str:
    rows = [row for line in section.lines for row in _rows(section, line)]
    table = ["| verl | its default | PPOJob | remark |", "| --- | --- | --- | --- |", *rows]
    parts = [f"## {section.title}", section.before, "\n".join(table), section.after]
    return "\n\n".join(filter(None, parts)) + "\n"


def _rows(section: Section, line: Line) -> Iterator[str]:
    """Return the rows of a line: its keys, grouped by field."""
    default = f"`{line.default}`" if line.default else ""
    if line.keys[0].startswith("("):
        yield _row(line.keys[0], "", f"`{line.how}`", line.remark)
        return
    for ours, keys in itertools.groupby(line.keys, lambda key: _ours(section.prefix + key)):
        names = list(keys)
        told = {_why(section.prefix + key) for key in names if ours == NOT_YET}
        remark = line.remark or (told.pop() if len(told) == 1 else "")
        yield _row(", ".join(f"`{key}`" for key in names), default, ours, remark)


def _ours(name: str) -> str:
    key = find(name)
    if key is not None and key.row.status:  # another name may be told of by that of verl's today
        key = find(main_name(name)) or key
    assert key is not None
    return key.row.status or ", ".join(f"`{field}`" for field in key.row.here)


def _why(name: str) -> str:
    key = find(name)
    assert key is not None
    return key.row.remark


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.stdout.write(page())
