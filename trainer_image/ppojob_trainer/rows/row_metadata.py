"""Metadata of a generated row: what the controller knows about it, without tokens."""

from collections import Counter
from collections.abc import Iterable

import msgspec


class RowMetadata(msgspec.Struct, frozen=True, array_like=True):
    """Metadata of one row, from its owner or from disk."""

    length: int  # response tokens
    is_truncated: bool  # whether a length limit ended it
    figures: bytes = b""  # `RowFigures` as JSON; empty for a single-turn row
    tool_seconds: float | None = None  # time in tool calls; None for a single-turn row or from disk
    versions: dict[int, int] = {}  # tokens by version of the generating weights, or `OF_DATA`
    later_image_bytes: int = 0  # of the images after the prompt


def tokens_by_version(segments: Iterable[tuple[int | None, int]]) -> dict[int, int]:
    """Sum the tokens of (version, tokens) by version; those of None were given."""
    found = Counter[int]()
    for version, tokens in segments:
        if version is not None:
            found[version] += tokens
    return dict(found)
