"""Passages found by a search, and their form for the policy."""

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec


class Passage(msgspec.Struct, frozen=True):
    """One document that was found.

    Attributes:
        id: of the document; empty where a service does not tell it.
        contents: a line of title, with the quotes that many corpora put there, then the text.
        score: larger is better; comparable within one query only.
    """

    id: str
    contents: str
    score: float


class Retriever(Protocol):
    """Finds passages.

    The same query has the same passages and scores, to the bit, whatever is asked beside it.
    """

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Find at most k passages of each query, the best first; equal scores by document id."""


def passages_to_string(passages: Iterable[Passage]) -> str:
    """Passages as a policy reads them: ``Doc 1(Title: "Paris") Paris is ...``, a line each.

    The form is that of ``_passages2string`` in Search-R1 (Jin et al. 2025, arXiv:2503.09516).
    """
    told = ""
    for number, passage in enumerate(passages, start=1):
        title, _, text = passage.contents.partition("\n")
        told += f"Doc {number}(Title: {title}) {text}\n"
    return told


def passages_to_paragraphs(passages: Iterable[Passage]) -> str:
    """The same as verl's `SearchTool` writes them: a heading and a text, an empty line apart."""
    parted = (passage.contents.partition("\n") for passage in passages)
    return "\n\n".join(
        f"Doc {number} (Title: {title})\n{text}"
        for number, (title, _, text) in enumerate(parted, start=1)
    ).strip()
