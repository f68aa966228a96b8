"""docs/from-verl.md, generated from the table of verl's keys: `python -m ppojob_cli.verl.page`."""

import itertools
import sys
from collections.abc import Iterator
from typing import Final

from ppojob_api.foreign_names import NOT_YET
from ppojob_cli.verl.keys import Line, find, lines, main_name, rows

_HEAD: Final = ("| verl | its default | PPOJob | remark |", "| --- | --- | --- | --- |")


def page() -> str:
    """Generate the page."""
    found, is_table = list[str](), False
    for line in lines():
        if isinstance(line, Line):
            found += [*(() if is_table else _HEAD), *_rows(line)]
        else:
            found.append(line)
        is_table = isinstance(line, Line)
    return "\n".join(found) + "\n"


def _rows(line: Line) -> Iterator[str]:
    """Return the rows of a line: its keys, grouped by field."""
    default = f"`{line.default}`" if line.default else ""
    if line.keys[0].startswith("("):
        yield _row(line.keys[0], "", f"`{line.how}`", line.remark)
        return
    for ours, keys in itertools.groupby(line.keys, _ours):
        names = list(keys)
        told = {rows()[key].row.remark for key in names if ours == NOT_YET}
        remark = line.remark or (told.pop() if len(told) == 1 else "")
        theirs = ", ".join(f"`{key.removeprefix(line.prefix)}`" for key in names)
        yield _row(theirs, default, ours, remark)


def _ours(name: str) -> str:
    key = rows()[name]
    if key.row.status:  # another name may be told of by that of verl's today
        key = find(main_name(name)) or key
    return key.row.status or ", ".join(f"`{field}`" for field in key.row.here)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.stdout.write(page())
