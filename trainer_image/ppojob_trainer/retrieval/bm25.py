"""BM25 index with Lucene's scoring and the constants of Search-R1's searches.

Robertson and Zaragoza 2009, "The Probabilistic Relevance Framework"; the variant and its name are
those of Kamphuis et al., ECIR 2020 ("Lucene (accurate)"). The package bm25s computes every score
when the index is made (Lù 2024, arXiv:2407.03618), so a search adds columns. Of document d, with
df(t) of N documents holding word t::

    score(q, d) = sum over words t of q: ln(1 + (N - df(t) + 1/2) / (df(t) + 1/2))
                  * tf(t, d) / (tf(t, d) + K1 * (1 - B + B * words(d) / mean of words))
"""

import re
import shutil
from pathlib import Path
from typing import Final

import bm25s
import numpy as np
from numpy.typing import NDArray

from ppojob_trainer import durable
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.retrieval.corpus import StoredCorpus, Tell

K1: Final = 0.9
B: Final = 0.4
LIBRARY: Final = f"bm25s {bm25s.__version__}"

_FOLDER: Final = "bm25"
_POINT: Final = durable.point("index.bm25", "fsync", *durable.RENAME_ACTS)
_WORD: Final = re.compile(r"\w+")
_POSSESSIVE: Final = re.compile("['\u2019]s\\b")
_STOP_WORDS: Final = frozenset(
    {
        *("a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in"),
        *("into", "is", "it", "no", "not", "of", "on", "or", "such", "that", "the", "their"),
        *("then", "there", "these", "they", "this", "to", "was", "will", "with"),
    }
)
_BYTES_PER_WORD: Final = 160
"""Of the vocabulary in memory: an entry of a dictionary, a text and a number."""


def words(text: str) -> list[str]:
    """Words of a text as the index knows them: lower case, without Lucene's English stop words."""
    plain = _POSSESSIVE.sub("", text.lower())
    return [word for word in _WORD.findall(plain) if word not in _STOP_WORDS]


def build_bm25(corpus: StoredCorpus, folder: Path, tell: Tell) -> tuple[list[str], int]:
    """Make an index by words, always from the beginning: it takes little time beside vectors.

    Returns:
        The files that were written, and the bytes that a search holds beside them.

    Raises:
        ConfigError: no document has a word.
        StorageError: the disk refused.
    """
    vocabulary: dict[str, int] = {}
    documents = []
    for number in range(len(corpus)):
        found = words(corpus[number].contents)
        documents.append([vocabulary.setdefault(word, len(vocabulary)) for word in found])
        tell("split into words", number + 1)
    if not vocabulary:
        raise ConfigError(
            f"{folder}: got {len(corpus)} documents without a word: there is nothing to find by;"
            " texts in the field contents"
        )
    index = bm25s.BM25(k1=K1, b=B, method="lucene", backend="numpy")
    index.index((documents, vocabulary), create_empty_token=False, show_progress=False)
    aside = folder / f".{_FOLDER}.aside"
    shutil.rmtree(aside, ignore_errors=True)
    try:
        index.save(aside, show_progress=False)
    except OSError as error:
        durable.raise_storage_error(aside, "write", error)
    for path in aside.iterdir():
        durable.fsync_file(path, _POINT)
    durable.fsync_folder(aside, _POINT)
    shutil.rmtree(folder / _FOLDER, ignore_errors=True)
    durable.rename(aside, folder / _FOLDER, _POINT)
    files = [f"{_FOLDER}/{path.name}" for path in (folder / _FOLDER).iterdir()]
    return files, _BYTES_PER_WORD * len(vocabulary)


class Bm25Scorer:
    """Scores documents by the words of a query; a word that is there twice counts twice.

    Raises:
        ConfigError: the package here is of another release.
    """

    def __init__(self, folder: Path, library: str) -> None:
        if _release(library) != _release(LIBRARY):
            why = f"{LIBRARY} is installed, which may score otherwise"
            raise ConfigError(
                f"{folder}: got an index of {library}: {why}; make it again with ppojob index"
            )
        self._index = bm25s.BM25.load(folder / _FOLDER, mmap=True, show_progress=False)

    def scores(self, query: str) -> NDArray[np.float32]:
        """Score every document for one query; see `Scorer`."""
        known = self._index.vocab_dict
        asked = [known[word] for word in words(query) if word in known]
        scores: NDArray[np.float32] = self._index.get_scores_from_ids(asked)
        scores[scores == 0.0] = -np.inf  # every word that matches adds more than 0
        return scores


def _release(library: str) -> list[str]:
    """`bm25s 0.3.16` as bm25s 0, 3."""
    return library.split(".")[:2]
