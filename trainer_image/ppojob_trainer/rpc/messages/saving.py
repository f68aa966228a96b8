"""What ranks write, and read again."""

import msgspec


class SaveShards(msgspec.Struct, frozen=True):
    """Write this rank's part of a checkpoint into a folder relative to the run folder."""

    folder: str


class SavedFile(msgspec.Struct, frozen=True):
    """A file of a checkpoint: name within it, size in bytes, sha256 in hexadecimal."""

    path: str
    size: int
    sha256: str


class Saved(msgspec.Struct, frozen=True):
    """The files that a rank wrote."""

    files: list[SavedFile]


class Restore(msgspec.Struct, frozen=True):
    """Take the state of a checkpoint, or of the models that the job began with.

    Attributes:
        folder: the checkpoint's, relative to the run folder; None for the models of the beginning.
        files: all files of the models that this rank holds a part of, whichever rank wrote them.
        total_updates: optimizer steps of the whole job by model, for schedules that end.
    """

    folder: str | None
    files: list[SavedFile]
    total_updates: dict[str, int]


class ExportModel(msgspec.Struct, frozen=True):
    """Write the model as a Hugging Face folder, relative to the run folder."""

    folder: str
