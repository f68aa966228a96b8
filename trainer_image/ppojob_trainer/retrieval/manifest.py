"""The manifest of an index; written last: without it an index is unfinished."""

import hashlib
from pathlib import Path
from typing import Final, Literal

import msgspec

from ppojob_api.problem import printable
from ppojob_trainer import durable
from ppojob_trainer.errors import ConfigError
from ppojob_trainer.models.memory import GIB, machine_bytes

VERSION: Final = 1
MANIFEST: Final = "manifest.json"

_MANIFEST: Final = durable.point("index.manifest", *durable.FILE_ACTS)
_AGAIN: Final = "make it again with ppojob index"

Kind = Literal["bm25", "dense"]


class EncoderSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How texts become vectors.

    Attributes:
        folder: the sentence encoder, as it was named when the index was made.
        fingerprint: of what is in that folder.
        pooling: the vector of a text: the mean of its tokens', or that of its first token.
        max_tokens: longer texts are cut.
    """

    folder: str
    fingerprint: str
    pooling: Literal["mean", "cls"]
    query_prefix: str
    passage_prefix: str
    max_tokens: int


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What decides every bit of an index; an interrupted one is continued with the same plan.

    `library` is package and version that made the index; only a dense one has an encoder.
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
    """What an index consists of.

    Attributes:
        memory_bytes: what a search keeps in memory, mapped files included.
        files: every file but the manifest.
    """

    version: int
    plan: Plan
    memory_bytes: int
    files: tuple[IndexFile, ...]


class _Version(msgspec.Struct):
    version: int


def seal(folder: Path, plan: Plan, memory_bytes: int, names: list[str]) -> Manifest:
    """Write the manifest of an index whose files, named relative to the folder, are all there.

    Raises:
        StorageError: the disk refused.
    """
    files = tuple(
        IndexFile(path=name, size_bytes=path.stat().st_size, sha256=_sha256(path))
        for name, path in ((name, folder / name) for name in sorted(names))
    )
    manifest = Manifest(version=VERSION, plan=plan, memory_bytes=memory_bytes, files=files)
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"
    durable.write_file(folder / MANIFEST, text, _MANIFEST)
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of an index, and no other file.

    Raises:
        ConfigError: there is no index, or one of another version.
    """
    path = folder / MANIFEST
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(
            f"{folder}: got no {MANIFEST}: it is not a complete index; the folder"
            " that ppojob index has written"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path}: got {error.strerror}: it cannot be read; a folder") from None
    try:
        version = msgspec.json.decode(text, type=_Version).version
        if version == VERSION:
            return msgspec.json.decode(text, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        why = f"it is no manifest: {printable(str(error))}"
        raise ConfigError(f"{path}: got {len(text)} bytes: {why}; {_AGAIN}") from None
    why = f"this program reads version {VERSION}"
    raise ConfigError(f"{path}: got version {version}: {why}; {_AGAIN}")


def check_memory(manifest: Manifest, folder: Path) -> None:
    """Refuse an index that does not fit into memory, before anything is loaded.

    Raises:
        ConfigError: it is too large.
    """
    there = machine_bytes()
    if there is not None and manifest.memory_bytes > there:
        raise ConfigError(
            f"{folder}: got an index of {manifest.memory_bytes / GIB:.2f} GiB in memory: this"
            f" machine, or the limit of its container, has {there / GIB:.2f} GiB; a larger one, or"
            " a smaller corpus"
        )


def check_files(manifest: Manifest, folder: Path) -> None:
    """Compare every byte of an index with its manifest.

    Raises:
        ConfigError: a file is absent, cut or changed.
    """
    for file in manifest.files:
        path = folder / file.path
        try:
            size = path.stat().st_size
            if size == file.size_bytes and _sha256(path) == file.sha256:
                continue
        except OSError as error:
            raise ConfigError(
                f"{path}: got {error.strerror}: the index needs it; {_AGAIN}"
            ) from None
        got = f"{size} bytes" if size != file.size_bytes else "other bytes"
        why = f"the index was made with {file.size_bytes}, sha256 {file.sha256[:12]}"
        raise ConfigError(f"{path}: got {got}: {why}; {_AGAIN}")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
