"""The manifest of an index; written last: without it, an index is incomplete.

Readers and checks raise ConfigError.
"""

from pathlib import Path
from typing import Final, Literal

import msgspec

from ppojob_api.problem import printable
from ppojob_trainer import durable
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.models.memory import GIB, machine_bytes

MANIFEST: Final = "manifest.json"

_MANIFEST: Final = durable.point("index.manifest", *durable.FILE_ACTS)
_REBUILD: Final = "build it again with ppojob index"

Kind = Literal["bm25", "dense"]


class EncoderSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How texts become vectors."""

    folder: str  # of the sentence encoder, when the index was built
    fingerprint: str  # of the files in that folder
    # The vector of a text: the mean of its tokens' vectors, or that of the first token.
    pooling: Literal["mean", "cls"]
    query_prefix: str
    passage_prefix: str
    max_tokens: int  # longer texts are truncated


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that determines the bits of an index; only the same plan continues a build.

    `library` has the packages and versions that built it; only a dense index has an encoder.
    """

    kind: Kind
    documents: int
    corpus_sha256: str
    library: str
    encoder: EncoderSettings | None = None


class IndexFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of an index; its path is relative to the folder."""

    path: str
    size_bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The contents of an index."""

    version: Literal[1]
    plan: Plan
    memory_bytes: int  # memory of a search, including mapped files
    files: tuple[IndexFile, ...]


def seal(folder: Path, plan: Plan, memory_bytes: int, names: list[str]) -> Manifest:
    """Write the manifest of an index, of which all files are complete; names are relative."""
    read = ((name, *durable.sha256_of(folder / name)) for name in sorted(names))
    files = tuple(IndexFile(path=name, size_bytes=size, sha256=sha) for name, size, sha in read)
    manifest = Manifest(version=1, plan=plan, memory_bytes=memory_bytes, files=files)
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"
    durable.write_file(folder / MANIFEST, text, _MANIFEST)
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a complete index, and no other file."""
    path = folder / MANIFEST
    try:
        return msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        raise ConfigError(
            f"{folder}: got no {MANIFEST}: it is not a complete index; the output"
            " folder of ppojob index"
        ) from None
    except (OSError, ValueError) as error:
        got = f"no manifest that can be read: {printable(str(error))}"
        raise ConfigError(f"{path}: got {got}; {_REBUILD}") from None


def check_memory(manifest: Manifest, folder: Path) -> None:
    """Refuse an index that does not fit into memory, before anything is loaded."""
    memory = machine_bytes()
    if memory is not None and manifest.memory_bytes > memory:
        raise ConfigError(
            f"{folder}: got an index of {manifest.memory_bytes / GIB:.2f} GiB in memory: this"
            f" machine, or the limit of its container, has {memory / GIB:.2f} GiB; more memory, or"
            " a smaller corpus"
        )


def check_files(manifest: Manifest, folder: Path) -> None:
    """Compare every byte of an index with its manifest."""
    for file in manifest.files:
        path = folder / file.path
        try:
            size, sha256 = durable.sha256_of(path)
        except OSError as error:
            raise ConfigError(
                f"{path}: got {error.strerror}: the index requires it; {_REBUILD}"
            ) from None
        if (size, sha256) == (file.size_bytes, file.sha256):
            continue
        got = f"{size} bytes" if size != file.size_bytes else "other bytes"
        why = f"the index was built with {file.size_bytes}, sha256 {file.sha256[:12]}"
        raise ConfigError(f"{path}: got {got}: {why}; {_REBUILD}")
