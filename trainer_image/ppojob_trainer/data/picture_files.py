"""Files of a model's folder that say how it takes pictures. Loads no torch."""

from pathlib import Path
from typing import Any, Final

import msgspec

PROCESSOR: Final = "preprocessor_config.json"
OF_VIDEOS: Final = "video_preprocessor_config.json"
NEWER: Final = "processor_config.json"
"""Where transformers 5 saves a whole processor."""


class _Added(msgspec.Struct):
    id: int
    content: str


class _AddedTokens(msgspec.Struct):
    added_tokens: list[_Added]


def added_tokens(folder: Path) -> dict[str, int]:
    """Tokens of a folder that no text is merged into, by their text."""
    try:
        body = (folder / "tokenizer.json").read_bytes()
        found = msgspec.json.decode(body, type=_AddedTokens)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}  # whoever needs it tells of it
    return {one.content: one.id for one in found.added_tokens}


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file; empty where there is none."""
    try:
        found = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}  # whoever needs it tells of it
    return found if isinstance(found, dict) else {}
