"""HTTP client of Search-R1's ``/retrieve``: a retriever like an index."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec

from ppojob_trainer.errors import ConfigError, RetrievalFailed
from ppojob_trainer.http_calls import CallFailed, endpoint_problem, post_json
from ppojob_trainer.retrieval.passages import Passage

CONCURRENT: Final = 8


class _Document(msgspec.Struct):
    contents: str
    id: str | int = ""


class _Found(msgspec.Struct):
    document: _Document
    score: float


class _Answer(msgspec.Struct):
    result: list[list[_Found]]


class HttpRetriever:
    """Sends queries to a service, each in its own request.

    If a service scores the queries of one request together, a score depends on the other queries
    (https://github.com/facebookresearch/faiss/issues/1808).

    `url` is the full URL, such as ``http://127.0.0.1:8000/retrieve``. Raises ConfigError if it is
    invalid.
    """

    def __init__(self, url: str) -> None:
        wrong = endpoint_problem(url, "")
        if wrong is not None:
            raise ConfigError(f"retriever: {wrong}")
        self._url = url
        self._pool = ThreadPoolExecutor(CONCURRENT, thread_name_prefix="retrieve")

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Find the best passages of each query, or raise RetrievalFailed; see `Retriever`."""
        return list(self._pool.map(lambda query: self._search(query, k), queries))

    def close(self) -> None:
        """Stop the threads without waiting for requests in progress."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _search(self, query: str, k: int) -> list[Passage]:
        try:
            answer = post_json(self._url, {"queries": [query], "topk": k, "return_scores": True})
        except CallFailed as error:
            raise RetrievalFailed(str(error)) from None
        try:
            result = msgspec.convert(answer, _Answer).result
        except msgspec.ValidationError as error:
            raise RetrievalFailed(f"{self._url} gave an invalid answer: {error}") from None
        if len(result) != 1:
            raise RetrievalFailed(f"{self._url} returned {len(result)} lists for one query")
        return [
            Passage(str(found.document.id), found.document.contents, found.score)
            for found in result[0][:k]
        ]
