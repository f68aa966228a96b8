"""Messages of checkpoints."""

import msgspec


class SaveShards(msgspec.Struct, frozen=True):
    """Write this rank's part of a checkpoint.

    Attributes:
        folder: the checkpoint's, relative to the run folder.
        step: steps done. A state that was copied already is not copied again: a controller that
            comes back may ask when ranks have left it.
        in_background: copy the state, and write it beside what follows; `SHARDS_WRITTEN` tells.
    """

    folder: str
    step: int
    in_background: bool = False


class FileEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of a checkpoint as the manifest has it, which the rank of a role wrote and reads back.

    Its path is relative to the checkpoint's folder (``actor_rollout/rank-00000/rng``), the digest
    is in hex.
    """

    path: str
    size_bytes: int
    sha256: str
    role: str
    rank: int


class Saved(msgspec.Struct, frozen=True):
    """The files that a rank wrote; none while it writes beside what follows."""

    files: list[FileEntry]


class AskWritten(msgspec.Struct, frozen=True):
    """Has this rank written its part of the checkpoint in a folder, beside other work?"""

    folder: str


class Written(msgspec.Struct, frozen=True):
    """What became of it.

    Attributes:
        files: those that it wrote; None where it has not, or not yet.
        refusal: what its disk said; empty where it has not refused.
    """

    files: list[FileEntry] | None = None
    refusal: str = ""


class Restore(msgspec.Struct, frozen=True):
    """Take the state of a checkpoint, or of the models that the job began with.

    Attributes:
        folder: the checkpoint's, relative to the run folder; None for the models of the beginning.
        files: all files of the models that this rank holds a part of, whichever rank wrote them.
        total_updates: optimizer steps of the whole job by model, for schedules that end.
    """

    folder: str | None
    files: list[FileEntry]
    total_updates: dict[str, int]


class ExportModel(msgspec.Struct, frozen=True):
    """Write the model as a Hugging Face folder, relative to the run folder."""

    folder: str
