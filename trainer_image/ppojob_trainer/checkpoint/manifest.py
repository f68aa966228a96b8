"""The manifest: the one file that makes a folder of shards a checkpoint.

It is canonical JSON (sorted keys, no spaces, one newline at the end) in an envelope that carries
its own sha256, so a manifest that was cut or changed anywhere is noticed like any other file::

    {"format":1,"manifest":{...},"sha256":"<of format and manifest>"}

State that a step depends on is either a field here or a file listed here; a field that is absent
is an error and never a default, since a default would start something afresh in silence.
"""

import hashlib
from pathlib import Path
from typing import Final

import msgspec

from ppojob_trainer.data.score_history import RowHistory
from ppojob_trainer.errors import CannotResume, DamagedCheckpoint
from ppojob_trainer.rpc.messages.saving import FileEntry

FORMAT: Final = 1
MANIFEST_NAME: Final = "manifest.json"


class DataCursor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the order of prompts stands.

    Attributes:
        epoch: passes over the data begun before this one, from 0.
        cursor: prompts of this epoch's order that were drawn.
        sha256: digest of the data set, so that a changed file is noticed.
    """

    epoch: int
    cursor: int
    sha256: str

    @property
    def place(self) -> tuple[int, int]:
        """As the order of prompts takes it."""
        return self.epoch, self.cursor


UNREAD: Final = DataCursor(epoch=0, cursor=0, sha256="")
"""In front of data that nobody has read yet, whatever it is."""


class RoleState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the checkpoint holds of one role, and how many ranks of which attempt wrote it."""

    role: str
    world_size: int
    attempt: int = msgspec.field(name="epoch")
    optimizer_steps: int


class Progress(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far the job is: all scalar state of a step's end.

    Attributes:
        step: steps done; 0 is the untrained model.
        policy_version: version of the weights that the rollout engine holds.
        kl_coefficient: None where the job has no KL controller; likewise `entropy_coefficient`.
        metrics_lines: lines of metrics.jsonl up to this step; fewer than that is a gap.
        tokens: prompt and response tokens of all steps so far.
        seconds: wall time of all steps so far, without steps that were thrown away.
        prompt_values: α and β of what each prompt that was drawn is known to score, by the digest
            of what it asks; empty where the job keeps none. Of the journal's events that of a step
            has those that it changed, and that of a resumed job all; others have none.
        rows_seen: what each row that was drawn has scored, by its number, where a sampler chooses
            rows; the journal's events have it as they have prompt_values.
        sampler_state: JSON that the sampler answered beside its rows.
        demonstrations: where the order of data.demonstrations stands; None where the job has none.
    """

    step: int
    policy_version: int
    data: DataCursor
    kl_coefficient: float | None
    metrics_lines: int
    tokens: int
    seconds: float
    roles: tuple[RoleState, ...]
    entropy_coefficient: float | None = None
    prompt_values: dict[str, tuple[float, float]] = {}
    rows_seen: dict[str, RowHistory] = {}
    sampler_state: str = "null"
    demonstrations: DataCursor | None = None


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that a checkpoint says of itself.

    The resolved configuration is one of the files, which are all but the manifest, by path.
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
    """Canonical bytes of a manifest file."""
    return _encode_envelope(FORMAT, msgspec.json.encode(manifest, order="sorted"))


def read(folder: Path) -> Manifest:
    """Read the manifest of a checkpoint; refuses as `decode` does, and where it is absent."""
    name = f"{folder.name}/{MANIFEST_NAME}"
    try:
        data = (folder / MANIFEST_NAME).read_bytes()
    except OSError as error:
        raise DamagedCheckpoint(name, f"cannot be read: {error.strerror}") from error
    return decode(data, name)


def decode(data: bytes, name: str) -> Manifest:
    """Read a manifest file.

    Raises:
        DamagedCheckpoint: it was cut or changed.
        CannotResume: it is whole, and of a newer format.
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
