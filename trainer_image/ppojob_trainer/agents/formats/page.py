"""Generates docs/agent-formats.md from the table."""

import sys

from ppojob_trainer.agents.formats.table import FORMATS

_HEAD = """\
# Tool-call formats

This page lists the formats in which models write tool calls, for `spec.agent.format`. Choose the
format that your model was trained with; the names are those of verl's `multi_turn.format`.
[Agents](agents.md#tool-call-formats) describes how calls are parsed.

Each row shows the same call, `add` with `a` 1 and `b` 2; that of `search_r1` is a search. The page
is generated from `ppojob_trainer/agents/formats/table.py` by
`python -m ppojob_trainer.agents.formats.page > docs/agent-formats.md`.

| format | a call | further ends of a turn |
| --- | --- | --- |
"""


def page() -> str:
    """Return the page."""
    rows = []
    for name, row in FORMATS.items():
        stops = " ".join(_code(stop) for stop in (*row.stop_texts, *row.stop_tokens))
        rows.append(f"| `{name}` | {_code(row.form)} | {stops} |\n")
    return _HEAD + "".join(rows)


def _code(text: str) -> str:
    """Format code in a cell of a table; a bar would end the cell."""
    return f"`{text}`".replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(page())
