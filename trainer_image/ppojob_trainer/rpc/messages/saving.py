"""Messages of checkpoints."""

import msgspec


class SaveShards(msgspec.Struct, frozen=True):
    """Write this rank's shard of a checkpoint."""

    folder: str  # folder of the checkpoint, relative to the run folder
    # finished steps. A copied state is not copied again, since a restarted controller may repeat
    # the request during a later step.
    step: int
    in_background: bool = False  # whether to copy the state and write it during later work


class FileEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of a checkpoint in the manifest, and the rank that wrote it.

    The path is relative to the checkpoint's folder (``actor_rollout/rank-00000/rng``).
    """

    path: str
    size_bytes: int
    sha256: str
    role: str
    rank: int


class Saved(msgspec.Struct, frozen=True):
    """The files that a rank has written; none in the background."""

    files: list[FileEntry]


class AskWritten(msgspec.Struct, frozen=True):
    """Query whether this rank has written its shard in the background."""

    folder: str


class Written(msgspec.Struct, frozen=True):
    """The result of a background write."""

    files: list[FileEntry] | None = None  # the written files; None if not (yet) written
    refusal: str = ""  # error of the disk, or empty


class Restore(msgspec.Struct, frozen=True):
    """Load the state of a checkpoint, or the initial models."""

    folder: str | None  # of the checkpoint, relative to the run folder; None for initial models
    files: list[FileEntry]  # the files of all ranks
    total_updates: dict[str, int]  # optimizer steps of the whole job by model, for schedules
