"""Dense index: exact inner products with every document.

Vectors are in memory-mapped shards, each written atomically, so that a build can be continued.
"""

from pathlib import Path
from typing import Final

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from ppojob_trainer import durable
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.retrieval.corpus import OnProgress, Scores, StoredCorpus, array_bytes
from ppojob_trainer.retrieval.encoder import SentenceEncoder, encoder_settings
from ppojob_trainer.retrieval.manifest import Plan

SHARD_DOCUMENTS: Final = 2048
LIBRARY: Final = f"transformers {transformers.__version__}, torch {torch.__version__}"

_SHARD: Final = durable.point("index.shard", *durable.FILE_ACTS)


def build_vectors(
    corpus: StoredCorpus, folder: Path, encoder: SentenceEncoder, on_progress: OnProgress
) -> tuple[list[str], int]:
    """Encode the documents of all shards that the folder of the index lacks.

    Returns the files of vectors, and the memory of a search besides them, in bytes. Raises
    StorageError if writing failed.
    """
    names: list[str] = []
    for first in range(0, len(corpus), SHARD_DOCUMENTS):
        end = min(first + SHARD_DOCUMENTS, len(corpus))
        names.append(f"vectors-{len(names):05d}.npy")
        path = folder / names[-1]
        if not path.exists():
            vectors = encoder.passages([corpus[number].contents for number in range(first, end)])
            durable.write_file(path, array_bytes(vectors), _SHARD)
        on_progress("encoded", end)
    return names, encoder.weight_bytes


def open_vectors(folder: Path, plan: Plan, encoder_folder: Path | None) -> Scores:
    """Open an index, which scores by the inner product of vectors.

    `encoder_folder` is None if the encoder has not moved since the index was built. Raises
    ConfigError if the encoder is missing or another one.
    """
    settings = plan.encoder
    assert settings is not None, "a dense index names its encoder"
    encoder_folder = encoder_folder or Path(settings.folder)
    if encoder_settings(encoder_folder).fingerprint != settings.fingerprint:
        raise ConfigError(
            f"{encoder_folder}: got another encoder: its vectors are not comparable with those"
            f" of the index; the encoder that was in {settings.folder} when it was built"
        )
    encoder = SentenceEncoder(encoder_folder, settings)
    shards: list[NDArray[np.float32]] = [
        np.load(path, mmap_mode="r") for path in sorted(folder.glob("vectors-*.npy"))
    ]

    def scores(query: str) -> NDArray[np.float32]:
        vector = encoder.query(query)
        return np.concatenate([shard @ vector for shard in shards])

    return scores
