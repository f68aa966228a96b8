"""Messages of checkpoints."""

import msgspec


class SaveShards(msgspec.Struct, frozen=True):
    """Write this rank's shard of a checkpoint.

    Attributes:
        folder: the checkpoint's, relative to the run folder.
        step: steps done. A copied state is not copied again: a restarted controller may ask after
            ranks have left it.
        in_background: copy the state, and write it during later work; see `SHARDS_WRITTEN`.
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
    """The files that a rank wrote; none while it writes in the background."""

    files: list[FileEntry]


class AskWritten(msgspec.Struct, frozen=True):
    """Ask whether this rank has written its shard of a checkpoint in the background."""

    folder: str


class Written(msgspec.Struct, frozen=True):
    """The result of a background write.

    Attributes:
        files: the written files; None if not (yet) written.
        refusal: the disk's error; empty without one.
    """

    files: list[FileEntry] | None = None
    refusal: str = ""


class Restore(msgspec.Struct, frozen=True):
    """Load the state of a checkpoint, or the initial models.

    Attributes:
        folder: the checkpoint's, relative to the run folder; None for the initial models.
        files: all files of the models that this rank holds a part of, whichever rank wrote them.
        total_updates: optimizer steps of the whole job by model, for schedules that end.
    """

    folder: str | None
    files: list[FileEntry]
    total_updates: dict[str, int]


class ExportModel(msgspec.Struct, frozen=True):
    """Write the model as a Hugging Face folder, relative to the run folder."""

    folder: str
