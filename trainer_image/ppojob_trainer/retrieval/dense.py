"""An index by vectors: the inner product with every document, no approximation.

Vectors lie in shards that are mapped, not read. A shard is whole or not there, so an index that was
begun is gone on with.
"""

from pathlib import Path
from typing import Final

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from ppojob_trainer import durable
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.retrieval.corpus import (
    BYTES_PER_DOCUMENT,
    RANKS,
    StoredCorpus,
    Tell,
    array_bytes,
)
from ppojob_trainer.retrieval.encoder import SentenceEncoder, encoder_settings
from ppojob_trainer.retrieval.manifest import Plan

SHARD_DOCUMENTS: Final = 2048
LIBRARY: Final = f"transformers {transformers.__version__}, torch {torch.__version__}"

_SHARD: Final = durable.point("index.shard", *durable.FILE_ACTS)


def build_vectors(
    corpus: StoredCorpus, folder: Path, encoder: SentenceEncoder, tell: Tell
) -> tuple[list[str], int]:
    """Encode the documents whose shards are not there yet in the folder of the index.

    Returns:
        The files of vectors, and the bytes that a search holds.

    Raises:
        StorageError: the disk refused.
    """
    names: list[str] = []
    for first in range(0, len(corpus), SHARD_DOCUMENTS):
        end = min(first + SHARD_DOCUMENTS, len(corpus))
        names.append(f"vectors-{len(names):05d}.npy")
        path = folder / names[-1]
        if not path.exists():
            vectors = encoder.passages([corpus[number].contents for number in range(first, end)])
            durable.write_file(path, array_bytes(vectors), _SHARD)
        tell("encoded", end)
    mapped = sum((folder / name).stat().st_size for name in (*names, RANKS))
    return names, mapped + BYTES_PER_DOCUMENT * len(corpus) + encoder.weight_bytes


def open_encoder(plan: Plan, folder: Path | None) -> SentenceEncoder:
    """Load the encoder that an index was made with, from where it lies now or where it did.

    Raises:
        ConfigError: it is not there, or another one.
    """
    settings = plan.encoder
    assert settings is not None, "a dense index names its encoder"
    folder = folder or Path(settings.folder)
    if encoder_settings(folder).fingerprint != settings.fingerprint:
        raise ConfigError(
            f"{folder}: got another encoder: its vectors cannot be compared with those of the"
            f" index; that of {settings.folder} when the index was made"
        )
    return SentenceEncoder(folder, settings)


class DenseScorer:
    """Scores documents by the inner product of vectors."""

    def __init__(self, folder: Path, encoder: SentenceEncoder) -> None:
        self._encoder = encoder
        self._shards: list[NDArray[np.float32]] = [
            np.load(path, mmap_mode="r") for path in sorted(folder.glob("vectors-*.npy"))
        ]

    def scores(self, query: str) -> NDArray[np.float32]:
        """Score every document for one query; see `Scorer`."""
        vector = self._encoder.query(query)
        return np.concatenate([shard @ vector for shard in self._shards])
