"""Index build: checks and copies the corpus, indexes it, and writes the manifest last.

If it is killed at any moment, the same call continues the index in the folder.
"""

import re
from pathlib import Path
from typing import Final

import msgspec

from ppojob_api.problem import shown
from ppojob_trainer import durable
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.retrieval.corpus import (
    DOCUMENTS,
    OFFSETS,
    RANKS,
    OnProgress,
    StoredCorpus,
    copy_corpus,
)
from ppojob_trainer.retrieval.manifest import MANIFEST, EncoderSettings, Manifest, Plan, seal

PLAN: Final = "plan.json"

_BYTES_PER_DOCUMENT: Final = 24
"""Memory per document for scoring one query and selecting the best."""
_PLAN: Final = durable.point("index.plan", *durable.FILE_ACTS)
_OURS: Final = re.compile(
    r"\.?(plan\.json|passages\.jsonl|(offsets|ranks|vectors-\d+)\.npy|manifest\.json|bm25)(\.aside)?"
).fullmatch


def build_index(
    corpus: Path, folder: Path, *, encoder: EncoderSettings | None, on_progress: OnProgress
) -> Manifest:
    """Build or continue an index: a dense one, or BM25 without an encoder.

    Raises ConfigError if the corpus, the encoder or the folder cannot be used, and StorageError if
    writing failed.
    """
    _prepare(folder)
    if encoder is None:
        from ppojob_trainer.retrieval import bm25

        library = bm25.LIBRARY
    else:
        from ppojob_trainer.retrieval import dense
        from ppojob_trainer.retrieval.encoder import SentenceEncoder

        library = dense.LIBRARY
        loaded = SentenceEncoder(Path(encoder.folder), encoder)
    copy = copy_corpus(corpus, folder, on_progress)
    plan = Plan(
        kind="bm25" if encoder is None else "dense",
        documents=len(copy.ranks),
        corpus_sha256=copy.sha256,
        library=library,
        encoder=encoder,
    )
    _begin(folder, plan)
    copy.keep()
    stored = StoredCorpus(folder)
    try:
        if encoder is None:
            names, memory_bytes = bm25.build_bm25(stored, folder, on_progress)
        else:
            names, memory_bytes = dense.build_vectors(stored, folder, loaded, on_progress)
    finally:
        stored.close()
    memory_bytes += sum((folder / name).stat().st_size for name in (*names, RANKS))
    memory_bytes += _BYTES_PER_DOCUMENT * plan.documents
    return seal(folder, plan, memory_bytes, [*names, DOCUMENTS, OFFSETS, RANKS])


def _prepare(folder: Path) -> None:
    """Create the folder; refuse one with an index, or with files that no build writes."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        names = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise ConfigError(f"--output: got {folder}: {error.strerror}; a writable folder") from None
    foreign = [
        f"it contains {shown(name)}, which is not part of an index"
        for name in names
        if not _OURS(name)
    ]
    for why in ["it contains a complete index"] if MANIFEST in names else foreign:
        raise ConfigError(f"--output: got {folder}: {why}; an empty or a new folder")


def _begin(folder: Path, plan: Plan) -> None:
    """Write the plan; refuse a folder in which another index was begun."""
    text = msgspec.json.format(msgspec.json.encode(plan), indent=1) + b"\n"
    path = folder / PLAN
    if path.exists() and path.read_bytes() != text:
        raise ConfigError(
            f"--output: got {folder}: it contains a partial index of another corpus, kind,"
            " encoder or version; the same ones, or an empty folder"
        )
    durable.write_file(path, text, _PLAN)
