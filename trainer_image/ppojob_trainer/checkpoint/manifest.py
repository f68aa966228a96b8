"""Manifest: the file that makes a folder of shards a complete checkpoint, and checks of its files.

It is canonical JSON (sorted keys, no spaces, one newline at the end) in an envelope with its own
sha256, so truncation or change of the manifest is noticed as in any other file::

    {"format":1,"manifest":{...},"sha256":"<of format and manifest>"}

State that a step depends on is either a field here or a file listed here. A missing field is an
error, never a default: a default would silently reset state.
"""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec

from ppojob_trainer import durable
from ppojob_trainer.data.score_history import RowHistory
from ppojob_trainer.errors import CannotResume, DamagedCheckpoint
from ppojob_trainer.rpc.messages.saving import FileEntry

FORMAT: Final = 1
MANIFEST_NAME: Final = "manifest.json"
CHUNK_BYTES: Final = 8 << 20
MODEL_FILE: Final = "model.safetensors"
"""File name of a rank's shard of a model's weights, in its folder of a checkpoint."""
AVERAGE_FILE: Final = "average.safetensors"
"""File name of the shard of their EMA."""


class DataCursor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Position in the order of prompts."""

    epoch: int  # data epochs completed before this one, from 0
    cursor: int  # prompts drawn in this epoch
    sha256: str  # digest of the data set, to notice a changed file

    @property
    def place(self) -> tuple[int, int]:
        """As an argument of the order of prompts."""
        return self.epoch, self.cursor


UNREAD: Final = DataCursor(epoch=0, cursor=0, sha256="")
"""Start of the data, before its digest is known."""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of the job: all scalar state at the end of a step.

    Other fields are ignored: folders of earlier versions have some.
    """

    step: int  # steps done; 0 is the untrained model
    data: DataCursor
    kl_coefficient: float | None  # None without a KL controller; likewise `entropy_coefficient`
    metrics_lines: int  # lines of metrics.jsonl up to this step; fewer than that is a gap
    tokens: int  # prompt and response tokens of all steps so far
    seconds: float  # wall time of all steps so far, without steps that were rewound
    entropy_coefficient: float | None = None
    # α and β of the score estimate of each drawn prompt, by the digest of its text; empty without
    # estimates. A journal event of a step has the changed ones, that of a resume has all; others
    # have none.
    prompt_values: dict[str, tuple[float, float]] = {}
    # scores of each drawn row, by its number, where a sampler chooses rows; in the journal as
    # prompt_values
    rows_seen: dict[str, RowHistory] = {}
    sampler_state: str = "null"  # JSON state that the sampler returned
    # position in the order of data.demonstrations; None without any
    demonstrations: DataCursor | None = None


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Content of a checkpoint.

    The resolved configuration is one of `files`, which are all but the manifest, by path.
    """

    job_uid: str
    config_sha256: str
    code_version: str
    progress: Progress
    files: tuple[FileEntry, ...]


class _Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    manifest: msgspec.Raw
    sha256: str


def encode(manifest: Manifest) -> bytes:
    """Encode a manifest file canonically."""
    return _encode_envelope(FORMAT, msgspec.json.encode(manifest, order="sorted"))


def read(folder: Path) -> Manifest:
    """Read the manifest of a checkpoint; raises as `decode` does, and if it is missing."""
    name = f"{folder.name}/{MANIFEST_NAME}"
    try:
        data = (folder / MANIFEST_NAME).read_bytes()
    except OSError as error:
        raise DamagedCheckpoint(name, f"cannot be read: {error.strerror}") from error
    return decode(data, name)


def decode(data: bytes, name: str) -> Manifest:
    """Decode a manifest file.

    Raises:
        DamagedCheckpoint: it was truncated or changed.
        CannotResume: it is intact, but of a newer format.
    """
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
        if data != _encode_envelope(envelope.format, bytes(envelope.manifest)):
            raise DamagedCheckpoint(name, "its own sha256 does not fit; it was changed")
        if envelope.format != FORMAT:
            raise CannotResume(
                f"{name}: got format {envelope.format}: this program reads format {FORMAT}; "
                "resume with the version that wrote it"
            )
        return msgspec.json.decode(envelope.manifest, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedCheckpoint(name, f"not a manifest: {error}") from error


def _encode_envelope(number: int, body: bytes) -> bytes:
    sha256 = hashlib.sha256(b"%d\n" % number + body).hexdigest()
    envelope = _Envelope(format=number, manifest=msgspec.Raw(body), sha256=sha256)
    return msgspec.json.encode(envelope, order="sorted") + b"\n"


def files_of_all_ranks(
    entries: Iterable[FileEntry], role: str, name: str, checkpoint: str
) -> list[FileEntry]:
    """Return all ranks' files of one kind of a role; DamagedCheckpoint if one is missing."""
    found = [e for e in entries if e.role == role and PurePosixPath(e.path).name == name]
    if sorted(entry.rank for entry in found) != list(range(max(1, len(found)))):
        raise DamagedCheckpoint(
            f"{checkpoint}/{role}/*/{name}",
            f"got those of ranks {[entry.rank for entry in found]}: all ranks' are needed",
        )
    return found


def entry_of(folder: Path, name: str, role: str, rank: int) -> FileEntry:
    """Return the manifest entry of a file that a rank has written, by its name in the folder."""
    size_bytes, sha256 = durable.sha256_of(folder / name)
    return FileEntry(path=name, size_bytes=size_bytes, sha256=sha256, role=role, rank=rank)


def check_size(folder: Path, entry: FileEntry) -> None:
    """Check that a file exists with the expected size; else raises DamagedCheckpoint."""
    name = f"{folder.name}/{entry.path}"
    try:
        found = (folder / entry.path).lstat()
    except OSError as error:
        raise DamagedCheckpoint(name, _reason(error)) from error
    if found.st_size != entry.size_bytes:
        raise DamagedCheckpoint(
            name, f"got {found.st_size} bytes: the manifest says {entry.size_bytes}"
        )


def check_content(folder: Path, entry: FileEntry) -> None:
    """Verify a file of a checkpoint against its sha256; else raises DamagedCheckpoint."""
    check_size(folder, entry)
    name = f"{folder.name}/{entry.path}"
    try:
        _, sha256 = durable.sha256_of(folder / entry.path)
    except OSError as error:
        raise DamagedCheckpoint(name, _reason(error)) from error
    if sha256 != entry.sha256:
        raise DamagedCheckpoint(
            name, f"got sha256 {sha256[:12]}: the manifest says {entry.sha256[:12]}; it was changed"
        )


def _reason(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "the file is missing"
    return f"cannot be read: {os.strerror(error.errno or 0)}"
