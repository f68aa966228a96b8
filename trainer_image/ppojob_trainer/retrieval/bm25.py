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
from ppojob_trainer.retrieval.corpus import OnProgress, Scores, StoredCorpus

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
"""Memory per word of the vocabulary: an entry of a dictionary, a text and a number."""


def words(text: str) -> list[str]:
    """Tokenise a text: lower-case words, without Lucene's English stop words."""
    plain = _POSSESSIVE.sub("", text.lower())
    return [word for word in _WORD.findall(plain) if word not in _STOP_WORDS]


def build_bm25(
    corpus: StoredCorpus, folder: Path, on_progress: OnProgress
) -> tuple[list[str], int]:
    """Build a BM25 index, never continued: it is quick, compared with a dense one.

    Returns the files that were written, and the memory of a search besides them, in bytes. Raises
    ConfigError if no document has a word, and StorageError if writing failed.
    """
    vocabulary: dict[str, int] = {}
    documents = []
    for number in range(len(corpus)):
        found = words(corpus[number].contents)
        documents.append([vocabulary.setdefault(word, len(vocabulary)) for word in found])
        on_progress("split into words", number + 1)
    if not vocabulary:
        raise ConfigError(
            f"{folder}: got {len(corpus)} documents without a word: nothing can be found;"
            " texts in the field contents"
        )
    index = bm25s.BM25(k1=K1, b=B, method="lucene", backend="numpy")
    index.index((documents, vocabulary), create_empty_token=False, show_progress=False)
    temporary = folder / f".{_FOLDER}.aside"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        index.save(temporary, show_progress=False)
    except OSError as error:
        durable.raise_storage_error(temporary, "write", error)
    for path in temporary.iterdir():
        durable.fsync_file(path, _POINT)
    durable.fsync_folder(temporary, _POINT)
    shutil.rmtree(folder / _FOLDER, ignore_errors=True)
    durable.rename(temporary, folder / _FOLDER, _POINT)
    files = [f"{_FOLDER}/{path.name}" for path in (folder / _FOLDER).iterdir()]
    return files, _BYTES_PER_WORD * len(vocabulary)


def open_bm25(folder: Path, library: str) -> Scores:
    """Open an index; a repeated word of a query counts repeatedly.

    Raises ConfigError if another release of bm25s is installed.
    """
    if _release(library) != _release(LIBRARY):
        why = f"{LIBRARY} is installed, which may score differently"
        raise ConfigError(
            f"{folder}: got an index of {library}: {why}; build it again with ppojob index"
        )
    index = bm25s.BM25.load(folder / _FOLDER, mmap=True, show_progress=False)

    def scores(query: str) -> NDArray[np.float32]:
        ids = [index.vocab_dict[word] for word in words(query) if word in index.vocab_dict]
        found: NDArray[np.float32] = index.get_scores_from_ids(ids)
        found[found == 0.0] = -np.inf  # every word that matches adds more than 0
        return found

    return scores


def _release(library: str) -> list[str]:
    """Return the release of a library: of `bm25s 0.3.16`, bm25s 0 and 3."""
    return library.split(".")[:2]
