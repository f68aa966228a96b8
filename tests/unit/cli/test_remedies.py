"""What `explain` says to do is what docs/operations.md says, word for word."""

import re
from collections.abc import Iterator
from pathlib import Path

from ppojob_cli.cluster.remedies import CONDITIONS, FOUND, LOSSES

DOCS = (Path(__file__).parents[3] / "docs" / "operations.md").read_text()
BOTH = "docs/operations.md and ppojob_cli/cluster/remedies.py are to say the same"
ROW = re.compile(r"^\| (`[^|]+) \| (?:[^|]+ \| )?(.+) \|$", re.MULTILINE)


def rows(heading: str) -> Iterator[tuple[str, str]]:
    """The words of a section's table, and what is to be done about each."""
    _, _, after = DOCS.partition(f"\n{heading}")
    assert after, f"docs/operations.md has no section {heading}"
    section = re.split(r"\n##", after, maxsplit=1)[0]
    for words, remedy in ROW.findall(section):
        for word in re.findall(r"`(\w+)`", words):
            yield word, remedy


def test_conditions() -> None:
    for name, remedies in CONDITIONS.items():
        heading = "### Complete and Failed" if name == "Failed" else f"### {name}"
        assert dict(rows(heading)) == remedies, f"{name}: {BOTH}"


def test_every_table_of_conditions_is_known() -> None:
    part = DOCS.partition("## Conditions")[2].partition("\n## ")[0]
    headings = set(re.findall(r"^### ([A-Z]\w+)", part, re.MULTILINE)) - {"What"}
    assert headings - {"Complete"} | {"Failed"} == set(CONDITIONS), BOTH


def test_what_only_explain_finds() -> None:
    assert dict(rows("### What only `explain` finds")) == FOUND, BOTH


def test_what_is_done_when_something_ends() -> None:
    assert dict(rows("## What is done when something ends")) == LOSSES, BOTH
