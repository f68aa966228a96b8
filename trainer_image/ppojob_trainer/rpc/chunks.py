"""Portions: a list that is too large for one request, cut into parts for several."""

import itertools
from collections.abc import Sequence
from typing import Final

CHUNK_BYTES: Final = 64 << 20
"""Far below what a method reads at most, so that an entry may be several times as large."""


def chunks(sizes: Sequence[int], chunk_bytes: int = CHUNK_BYTES) -> list[tuple[int, int]]:
    """Cut a list into runs `[first, last)` of entries; none for an empty list.

    Args:
        sizes: bytes of each entry as it is encoded.
        chunk_bytes: of a run; an entry that is larger by itself is a run of its own.
    """
    edges = [0]
    filled = 0
    for position, size in enumerate(sizes):
        if filled and filled + size > chunk_bytes:
            edges.append(position)
            filled = 0
        filled += size
    return list(itertools.pairwise([*edges, len(sizes)])) if sizes else []
