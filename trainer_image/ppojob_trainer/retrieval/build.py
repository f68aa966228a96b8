"""Index build: the corpus is copied and checked, then indexed, then the manifest is written.

Killed at any moment, the folder holds the beginning of an index; the same call continues it.
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
    StoredCorpus,
    Tell,
    copy_corpus,
)
from ppojob_trainer.retrieval.manifest import MANIFEST, EncoderSettings, Manifest, Plan, seal

PLAN: Final = "plan.json"

_BYTES_PER_DOCUMENT: Final = 24
"""In memory: scores of one query, and what is done to find the best."""
_PLAN: Final = durable.point("index.plan", *durable.FILE_ACTS)
_OURS: Final = re.compile(
    r"\.?(plan\.json|passages\.jsonl|(offsets|ranks|vectors-\d+)\.npy|manifest\.json|bm25)(\.aside)?"
).fullmatch


def build_index(
    corpus: Path, folder: Path, *, encoder: EncoderSettings | None, tell: Tell
) -> Manifest:
    """Make an index by vectors, or without an encoder by words, or continue one.

    Raises:
        ConfigError: the corpus, the encoder or the folder cannot be used.
        StorageError: the disk refused.
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
    copy = copy_corpus(corpus, folder, tell)
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
            names, memory_bytes = bm25.build_bm25(stored, folder, tell)
        else:
            names, memory_bytes = dense.build_vectors(stored, folder, loaded, tell)
    finally:
        stored.close()
    memory_bytes += sum((folder / name).stat().st_size for name in (*names, RANKS))
    memory_bytes += _BYTES_PER_DOCUMENT * plan.documents
    return seal(folder, plan, memory_bytes, [*names, DOCUMENTS, OFFSETS, RANKS])


def _prepare(folder: Path) -> None:
    """Make the folder, and refuse one that holds an index, or anything that is not ours."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        names = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise ConfigError(
            f"--output: got {folder}: {error.strerror}; a folder that can be written"
        ) from None
    foreign = [f"{shown(name)} is there, which is of no index" for name in names if not _OURS(name)]
    for why in ["an index is there already"] if MANIFEST in names else foreign:
        raise ConfigError(f"--output: got {folder}: {why}; a folder that is empty or absent")


def _begin(folder: Path, plan: Plan) -> None:
    """Write down what is made here, or refuse where another index was begun."""
    text = msgspec.json.format(msgspec.json.encode(plan), indent=1) + b"\n"
    path = folder / PLAN
    if path.exists() and path.read_bytes() != text:
        raise ConfigError(
            f"--output: got {folder}: another index was begun there, of another corpus, kind,"
            " encoder or version; the same again, or an empty folder"
        )
    durable.write_file(path, text, _PLAN)
