"""Passages found by a search, and their format for the policy."""

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec


class Passage(msgspec.Struct, frozen=True):
    """One document that was found."""

    id: str  # of the document; empty if a service does not send it
    contents: str  # a title line, in quotes in many corpora, then the text
    score: float  # larger is better; comparable within one query only


class Retriever(Protocol):
    """Finds passages.

    A query has the same passages and scores, to the bit, whatever the other queries are.
    """

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Find at most k passages of each query, the best first; equal scores by document id."""


def passages_to_string(passages: Iterable[Passage]) -> str:
    """Format passages as ``Doc 1(Title: "Paris") Paris is ...``, a line each.

    The format is that of ``_passages2string`` in Search-R1 (Jin et al. 2025, arXiv:2503.09516).
    """
    text = ""
    for number, passage in enumerate(passages, start=1):
        title, _, body = passage.contents.partition("\n")
        text += f"Doc {number}(Title: {title}) {body}\n"
    return text


def passages_to_paragraphs(passages: Iterable[Passage]) -> str:
    """Format passages as verl's `SearchTool` does: heading and text, separated by empty lines."""
    parted = (passage.contents.partition("\n") for passage in passages)
    return "\n\n".join(
        f"Doc {number} (Title: {title})\n{text}"
        for number, (title, _, text) in enumerate(parted, start=1)
    ).strip()
