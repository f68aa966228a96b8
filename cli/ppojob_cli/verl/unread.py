"""Marks of unknown parts of a value, with the line and the text that would determine them.

A mark has no character with a meaning in shell, Hydra or YAML.
"""

import re
from collections.abc import Iterator
from typing import Final

from pydantic import JsonValue

_MARK: Final = re.compile("\ue000([0-9]+)x([0-9a-f]*)\ue001")
_SHOWN: Final = 60


def mark(line: int, source: str) -> str:
    """Make the mark of an unknown value."""
    text = told(" ".join(source.split()))
    text = text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
    return f"\ue000{line}x{text.encode().hex()}\ue001"


def marks(value: object) -> Iterator[tuple[int, str]]:
    """Return the line and source of each mark within a value."""
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from marks(part)
    elif isinstance(value, str):
        yield from ((int(found[1]), _source(found)) for found in _MARK.finditer(value))


def place(line: int, source: str) -> str:
    """Format the source of a mark, with its line if known."""
    return f"{source} in line {line}" if line else source


def without(text: str) -> str:
    """Remove the marks from a text."""
    return _MARK.sub("", text)


def told(value: str) -> str:
    """Replace the marks of a text by their sources."""
    return _MARK.sub(_source, value)


def told_in(value: JsonValue) -> JsonValue:
    """Replace the marks of all texts within a value."""
    if isinstance(value, list):
        return [told_in(item) for item in value]
    return told(value) if isinstance(value, str) else value


def _source(found: re.Match[str]) -> str:
    return bytes.fromhex(found[2]).decode()
