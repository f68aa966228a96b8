"""docs/agent-formats.md, made of the table: `python -m ppojob_trainer.agents.formats.page`."""

import sys

from ppojob_trainer.agents.formats.table import FORMATS

_HEAD = """\
# Formats of calls

Made from `ppojob_trainer/agents/formats/table.py` by
`python -m ppojob_trainer.agents.formats.page > docs/agent-formats.md`.

How a model writes a call of a tool is part of what it has learnt; the names are verl's of
`multi_turn.format`. Each form below is the same call, `add` with `a` 1 and `b` 2; that of
`search_r1` is a search. [Agents](agents.md) says what becomes of calls.

| format | a call | a turn ends also at |
| --- | --- | --- |
"""


def page() -> str:
    """The whole page."""
    rows = []
    for name, row in FORMATS.items():
        stops = " ".join(_code(stop) for stop in (*row.stop_texts, *row.stop_tokens))
        rows.append(f"| `{name}` | {_code(row.form)} | {stops} |\n")
    return _HEAD + "".join(rows)


def _code(text: str) -> str:
    """Code in a cell of a table, where a bar would end it."""
    return f"`{text}`".replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(page())
