"""Lines that tests expect word for word, in one text file an area."""

import re
from pathlib import Path

ANYTHING = "<...>"
"""Stands in an expected line for words of a library, or of this machine."""


def read_lines(path: Path) -> dict[str, list[str]]:
    """The lines that cases expect: paragraphs of a name and of lines behind `=> `."""
    found = {}
    for block in path.read_text().split("\n\n"):
        name, *rest = [line for line in block.splitlines() if line and line[0] != "#"] or [""]
        found[name] = [line.removeprefix("=> ") for line in rest]
    return {name: lines for name, lines in found.items() if name}


def assert_lines(found: list[str], expected: list[str]) -> None:
    """Hold lines against those of a case."""
    patterns = [".*".join(map(re.escape, line.split(ANYTHING))) for line in expected]
    assert len(found) == len(expected), found
    for line, pattern in zip(found, patterns, strict=True):
        assert re.fullmatch(pattern, line), found
