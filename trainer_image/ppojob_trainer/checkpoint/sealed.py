"""Sealed commits as they are read: what is in them, and whether they are still whole."""

from dataclasses import dataclass
from pathlib import Path

from ppojob_trainer.checkpoint import identity, manifest
from ppojob_trainer.checkpoint.files import check_content, check_size
from ppojob_trainer.checkpoint.manifest import MANIFEST_NAME, Manifest
from ppojob_trainer.errors import DamagedCommit


@dataclass(frozen=True, slots=True)
class Commit:
    """A sealed commit.

    Attributes:
        folder: where it lies.
        manifest: what it says of itself.
    """

    folder: Path
    manifest: Manifest

    @property
    def step(self) -> int:
        """Steps done."""
        return self.manifest.progress.step

    def verify(self) -> None:
        """Check every byte of every file.

        Raises:
            DamagedCommit: names the file.
        """
        for entry in self.manifest.files:
            check_content(self.folder, entry)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A commit that was not used.

    Attributes:
        step: of the commit.
        file: what is damaged, relative to the checkpoints folder.
        reason: how.
    """

    step: int
    file: str
    reason: str

    def __str__(self) -> str:
        return f"{self.file}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Latest:
    """What a restart goes on from.

    Attributes:
        commit: the newest that is whole; None where none was ever sealed.
        refusals: newer ones that are damaged, newest first.
    """

    commit: Commit | None
    refusals: tuple[Refusal, ...]


def folder_name(step: int) -> str:
    """Name of a sealed commit's folder."""
    return f"step-{step:06d}"


def read_commit(folder: Path, step: int, owner: identity.Identity) -> Commit:
    """Read a commit: manifest, identity, presence and length of each file; not its bytes.

    Args:
        folder: of the commit.
        step: which it should be of.
        owner: this job.

    Raises:
        DamagedCommit: names the file.
        CannotResume: it is of another job, configuration or format.
    """
    name = f"{folder.name}/{MANIFEST_NAME}"
    try:
        data = (folder / MANIFEST_NAME).read_bytes()
    except OSError as error:
        raise DamagedCommit(name, f"cannot be read: {error.strerror}") from error
    found = manifest.decode(data, name)
    if found.progress.step != step:
        raise DamagedCommit(name, f"got step {found.progress.step}: it is of another commit")
    identity.check(owner, found, folder)
    for entry in found.files:
        check_size(folder, entry)
    return Commit(folder=folder, manifest=found)
