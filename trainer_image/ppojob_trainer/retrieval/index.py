"""Local index, searched by one query at a time."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ppojob_trainer.closeable import Closeable
from ppojob_trainer.retrieval.corpus import Scores, StoredCorpus
from ppojob_trainer.retrieval.manifest import check_files, check_memory, read_manifest
from ppojob_trainer.retrieval.passages import Passage


class IndexRetriever(Closeable):
    """Finds passages in an index."""

    def __init__(self, corpus: StoredCorpus, scores: Scores) -> None:
        self._corpus = corpus
        self._scores = scores

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Find the best passages of each query; see `Retriever`.

        Queries are never scored together: a product of matrices may round a row differently with
        other rows in the batch.
        """
        found: list[list[Passage]] = []
        for query in queries:
            scores = self._scores(query)
            found.append([])
            for number in best(scores, self._corpus.ranks, k):
                document = self._corpus[int(number)]
                score = float(scores[number])
                found[-1].append(Passage(document.id, document.contents, score))
        return found

    def close(self) -> None:
        self._corpus.close()


def best(scores: NDArray[np.float32], ranks: NDArray[np.int32], k: int) -> NDArray[np.int64]:
    """Return the numbers of the k best documents, the best first; equal scores by rank.

    `scores`, (documents,), are -inf for those that do not match; `ranks`, (documents,), are those
    of the ids among the sorted ids.
    """
    if k <= 0:
        return np.empty(0, np.int64)
    found = np.flatnonzero(scores > -np.inf)
    if len(found) > k:
        among = scores[found]
        least = np.partition(among, len(found) - k)[len(found) - k]
        found = found[among >= least]
    order: NDArray[np.int64] = np.lexsort((ranks[found], -scores[found]))
    return found[order[:k]]


def open_index(folder: Path, encoder: Path | None = None) -> IndexRetriever:
    """Open an index that `build.build_index` has written.

    `encoder` is the folder of a dense index's encoder, if it has moved. Raises ConfigError if the
    index is missing, damaged, too large or of another version, or has another encoder.
    """
    manifest = read_manifest(folder)
    check_memory(manifest, folder)
    check_files(manifest, folder)
    if manifest.plan.kind == "bm25":
        from ppojob_trainer.retrieval.bm25 import open_bm25  # loads numba, if it is installed

        scores = open_bm25(folder, manifest.plan.library)
    else:
        from ppojob_trainer.retrieval.dense import open_vectors  # loads torch

        scores = open_vectors(folder, manifest.plan, encoder)
    return IndexRetriever(StoredCorpus(folder), scores)
