"""Exceptions of a training job.

A message is one line: ``where: got <value>: why; what is allowed``.
"""

# ruff: noqa: N818  the names say what happened; most are not programming errors

from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar


class PPOJobError(Exception):
    """Base class of the errors that the trainer raises on purpose."""

    exit_status: ClassVar[int] = 3  # exit status of a process that ends with this error


class ConfigError(PPOJobError, ValueError):
    """The user's input is wrong; `problems` has one line for each mistake found."""

    exit_status: ClassVar[int] = 2

    def __init__(self, problems: str | Iterable[str]) -> None:
        self.problems = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(self.problems))


class CannotResume(ConfigError):
    """The checkpoint does not belong to this job; the message names the difference."""


class JobFailed(PPOJobError):
    """The job cannot continue; the message names the stage and the reason."""


class CustomCodeFailed(JobFailed):
    """A custom estimator or policy loss raised, or returned an invalid value."""


class Interrupted(PPOJobError):
    """The job was asked to stop while starting or validating; nothing is lost."""

    exit_status: ClassVar[int] = 130


class GenerationAborted(PPOJobError):
    """The controller aborted a generation phase; its rows are not finished."""


class RoleLost(PPOJobError):
    """A role cannot answer in its current attempt."""

    def __init__(self, role: str, reason: str) -> None:
        self.role = role
        self.reason = reason
        super().__init__(f"{role}: lost: {reason}")


class WorldNotOpen(PPOJobError):
    """The ranks of an attempt could not rendezvous."""


class ChannelLost(PPOJobError):
    """A channel to the ranks of another role is broken.

    The rank that raises this keeps running: its request fails, and the controller restarts the
    other role and opens a new channel.
    """

    def __init__(self, channel: str, reason: str) -> None:
        super().__init__(f"{channel}: lost: {reason}")


class Fenced(PPOJobError):
    """A newer attempt has taken over; this process must stop."""


class StorageError(PPOJobError):
    """A write failed on the disk."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")


class DamagedCheckpoint(PPOJobError):
    """A file of a checkpoint is missing, truncated, changed or foreign.

    Attributes:
        file: the file, relative to the checkpoints folder (``step-000020/manifest.json``).
    """

    def __init__(self, file: str, reason: str) -> None:
        self.file = file
        self.reason = reason
        super().__init__(f"{file}: {reason}")


class CheckpointLost(DamagedCheckpoint):
    """Checkpoints were saved, but none is readable: the job must not restart at step 0."""


class RewardFailed(PPOJobError):
    """A reward function failed or returned an invalid value.

    Attributes:
        where: function and row (``gsm8k: row 12``).
        reason: one line; the controller appends lines with the prompt and the response.
        row: row of the response in its batch, the first of several; None if there is none.
        response: its text, possibly truncated.
    """

    def __init__(
        self, where: str, reason: str, *, row: int | None = None, response: str = ""
    ) -> None:
        self.where = where
        self.reason = reason
        self.row = row
        self.response = response
        super().__init__(f"{where}: {reason}")


class RetrievalFailed(PPOJobError):
    """A retrieval service did not answer, after all retries."""


class InjectedFault(PPOJobError):
    """Raised by a failpoint armed with ``raise``, in tests only."""


class BadInput(Exception):
    """A mistake in the user's input; the caller adds the place."""

    def __init__(self, got: str, why: str, allowed: str) -> None:
        self.got, self.why, self.allowed = got, why, allowed
        super().__init__(got, why, allowed)

    def __str__(self) -> str:
        """Return the message without the place."""
        return f"got {self.got}: {self.why}; {self.allowed}"


class SamplerFailed(PPOJobError):
    """A custom sampler failed, or returned invalid rows."""


class StateLost(Exception):
    """An environment of a row is gone with its state, or could not be made."""
