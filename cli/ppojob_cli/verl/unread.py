"""What stands in a value where it was not read: the line and the text of what would decide it.

A mark is a piece of text without any sign that shell, Hydra or YAML take for their own.
"""

import re
from collections.abc import Iterator
from typing import Final

from pydantic import JsonValue

_MARK: Final = re.compile("\ue000([0-9]+)x([0-9a-f]*)\ue001")
_SHOWN: Final = 60


def mark(line: int, source: str) -> str:
    """A piece of text that stands for what nobody has computed."""
    text = told(" ".join(source.split()))
    text = text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
    return f"\ue000{line}x{text.encode().hex()}\ue001"


def marks(value: object) -> Iterator[tuple[int, str]]:
    """Line and source of each such piece within a value."""
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from marks(part)
    elif isinstance(value, str):
        yield from ((int(found[1]), _source(found)) for found in _MARK.finditer(value))


def place(line: int, source: str) -> str:
    """The source of a piece, with its line where it has one."""
    return f"{source} in line {line}" if line else source


def without(text: str) -> str:
    """The text without them."""
    return _MARK.sub("", text)


def told(value: str) -> str:
    """The text with the sources, as the script has them."""
    return _MARK.sub(_source, value)


def told_in(value: JsonValue) -> JsonValue:
    """The same for all text within a value."""
    if isinstance(value, list):
        return [told_in(item) for item in value]
    return told(value) if isinstance(value, str) else value


def _source(found: re.Match[str]) -> str:
    return bytes.fromhex(found[2]).decode()
