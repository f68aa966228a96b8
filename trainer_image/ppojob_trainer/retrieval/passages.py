"""What a search finds, whoever searches: an index of this machine, or a service over HTTP."""

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec


class Passage(msgspec.Struct, frozen=True):
    """One document that was found.

    Attributes:
        id: of the document; empty where a service does not tell it.
        title: first line of the document's contents, with the quotes that many corpora put there.
        text: the other lines.
        score: larger is better; comparable within one query only.
    """

    id: str
    title: str
    text: str
    score: float

    @property
    def contents(self) -> str:
        """Title and text as the corpus has them."""
        return f"{self.title}\n{self.text}" if self.text else self.title


class Retriever(Protocol):
    """Finds passages.

    The same query has the same passages and scores, to the bit, whatever is asked beside it.
    """

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Find at most k passages of each query, the best first; equal scores by document id."""


def passage_of(document_id: str, contents: str, score: float) -> Passage:
    """A passage by the contents of its document: a line of title, then the text."""
    title, _, text = contents.partition("\n")
    return Passage(document_id, title, text, score)


def passages_to_string(passages: Iterable[Passage]) -> str:
    """Passages as a policy reads them: ``Doc 1(Title: "Paris") Paris is ...``, a line each.

    The form is that of ``_passages2string`` in Search-R1 (Jin et al. 2025, arXiv:2503.09516).
    """
    return "".join(
        f"Doc {number}(Title: {passage.title}) {passage.text}\n"
        for number, passage in enumerate(passages, start=1)
    )
