r"""Corpus in Search-R1's format, and its copy in the folder of an index.

A line is ``{"id": "7", "contents": "\"Title\"\ntext"}``; the file may be compressed with
gzip. The copy is plain JSON lines, with two arrays: the offset of each document, and the rank of
its id among the sorted ids.
"""

import gzip
import hashlib
import io
import itertools
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from ppojob_api.problem import printable, shown
from ppojob_trainer import durable
from ppojob_trainer.errors import ConfigError

OnProgress = Callable[[str, int], None]
"""Called with the current stage, and the number of documents that it has processed."""
Scores: TypeAlias = Callable[[str], NDArray[np.float32]]
"""Query -> (documents,) scores of an index; -inf for documents that do not match."""

DOCUMENTS: Final = "passages.jsonl"
OFFSETS: Final = "offsets.npy"
RANKS: Final = "ranks.npy"
FILE: Final = durable.point("index.file", *durable.FILE_ACTS)

_EXAMPLE: Final = r'{"id": "7", "contents": "\"Title\"\ntext"}'
_LISTED: Final = 20
_GZIP: Final = b"\x1f\x8b"


class Document(msgspec.Struct, frozen=True):
    """One line of a corpus; other fields are dropped."""

    id: str
    contents: str


@dataclass(frozen=True, slots=True)
class CorpusCopy:
    """A copy under a temporary name in the folder of an index."""

    folder: Path
    sha256: str  # of the copy, so that it does not depend on gzip
    offsets: NDArray[np.int64]  # of each document, and the end of the last
    ranks: NDArray[np.int32]  # of each document's id among the sorted ids

    def keep(self) -> None:
        """Write the arrays, and rename all to their final names; replaces existing files."""
        for name, array in ((OFFSETS, self.offsets), (RANKS, self.ranks)):
            durable.write_file(self.folder / name, array_bytes(array), FILE)
        durable.fsync_file(_temporary_path(self.folder), FILE)
        durable.rename(_temporary_path(self.folder), self.folder / DOCUMENTS, FILE)


def copy_corpus(corpus: Path, folder: Path, on_progress: OnProgress) -> CorpusCopy:
    """Check all of a corpus, and copy it to a temporary file in the folder of the index.

    Raises ConfigError for lines that are not documents, duplicate ids, or no lines, and
    StorageError if writing failed.
    """
    digest, offsets, ids = hashlib.sha256(), [0], list[str]()
    problems: list[str] = []
    try:
        with open(_temporary_path(folder), "wb") as copy:
            for read in _read(corpus):
                if isinstance(read, Document):
                    line = msgspec.json.encode(read) + b"\n"
                    digest.update(line)
                    copy.write(line)
                    offsets.append(offsets[-1] + len(line))
                    ids.append(read.id)
                    on_progress("read", len(ids))
                elif len(problems) < _LISTED:
                    problems.append(read)
    except OSError as error:
        durable.raise_storage_error(folder / DOCUMENTS, "write", error)
    problems = problems or list(itertools.islice(_id_problems(corpus, ids), _LISTED))
    if not ids and not problems:
        problems = [f"{corpus}: got no lines: it is empty; {_EXAMPLE} a line"]
    if problems:
        _temporary_path(folder).unlink()
        raise ConfigError(problems)
    ranks = np.empty(len(ids), np.int32)
    ranks[sorted(range(len(ids)), key=ids.__getitem__)] = np.arange(len(ids), dtype=np.int32)
    return CorpusCopy(folder, digest.hexdigest(), np.array(offsets, np.int64), ranks)


def array_bytes(array: NDArray[np.generic]) -> bytes:
    """Encode an array in numpy's file format."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


class StoredCorpus:
    """The documents in the folder of an index, read from the disk on access.

    `ranks` has the rank of each document's id among the sorted ids.
    """

    def __init__(self, folder: Path) -> None:
        self._offsets = np.load(folder / OFFSETS, mmap_mode="r")
        self.ranks: NDArray[np.int32] = np.load(folder / RANKS, mmap_mode="r")
        self._file = os.open(folder / DOCUMENTS, os.O_RDONLY | os.O_CLOEXEC)

    def __len__(self) -> int:
        return len(self.ranks)

    def __getitem__(self, number: int) -> Document:
        begin, end = int(self._offsets[number]), int(self._offsets[number + 1])
        line = os.pread(self._file, end - begin, begin)
        return msgspec.json.decode(line, type=Document)

    def close(self) -> None:
        os.close(self._file)


def _temporary_path(folder: Path) -> Path:
    return folder / f".{DOCUMENTS}.aside"


def _read(path: Path) -> Iterator[Document | str]:
    """Yield the documents, and a problem per invalid line."""
    decoder = msgspec.json.Decoder(Document)
    number = 0
    try:
        with open(path, "rb") as file:
            is_compressed = file.peek(len(_GZIP))[: len(_GZIP)] == _GZIP
            for line in gzip.GzipFile(fileobj=file) if is_compressed else file:
                number += 1
                yield _document(decoder, line, f"{path}:{number}")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        why = f"got damaged gzip data: {printable(str(error))}"
        yield f"{path}:{number + 1}: {why}; write or download the file again"
    except OSError as error:
        yield f"{path}: got {error.strerror}: it cannot be read; a file of JSON lines"


def _document(decoder: "msgspec.json.Decoder[Document]", line: bytes, where: str) -> Document | str:
    try:
        document = decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        got = shown(line.decode(errors="replace").rstrip("\n"))
        return f"{where}: got {got}: {printable(str(error))}; {_EXAMPLE}"
    for field, text in (("id", document.id), ("contents", document.contents)):
        if not text.strip():
            return f"{where}: got {field} {shown(text)}: it is empty; {_EXAMPLE}"
    return document


def _id_problems(corpus: Path, ids: list[str]) -> Iterator[str]:
    if len(set(ids)) == len(ids):
        return
    first: dict[str, int] = {}
    for line, name in enumerate(ids, start=1):
        if first.setdefault(name, line) != line:
            why = f"line {first[name]} has it too"
            yield f"{corpus}:{line}: got id {shown(name)}: {why}; each id once"
