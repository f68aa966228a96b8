"""Errors of a training job, as types that higher layers handle.

Every message is one line: ``where: got <value>: why; what is allowed``.
"""

# ruff: noqa: N818  the names say what happened; most of them are no mistake of anyone

from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar


class PPOJobError(Exception):
    """The root of all errors that the trainer raises on purpose.

    Attributes:
        exit_status: what the process that meets this error at its top exits with.
    """

    exit_status: ClassVar[int] = 3


class ConfigError(PPOJobError, ValueError):
    """The user's input is wrong.

    Carries every problem found, one line each, since people want to mend a file in one go.
    """

    exit_status: ClassVar[int] = 2

    def __init__(self, problems: str | Iterable[str]) -> None:
        self.problems = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(self.problems))


class CannotResume(ConfigError):
    """A checkpoint exists, and it is not one of this job: names what differs."""


class JobFailed(PPOJobError):
    """The job is over without success; the message says which stage and why."""


class CustomCodeFailed(JobFailed):
    """An estimator or a policy loss of the job's author raised, or gave what is no answer."""


class Interrupted(PPOJobError):
    """Somebody asked the job to end while it was starting or validating; nothing is lost."""

    exit_status: ClassVar[int] = 130


class GenerationLeft(PPOJobError):
    """The controller gave a generation phase up; its rows are not finished."""


class RoleLost(PPOJobError):
    """A role can no longer answer in its present attempt."""

    def __init__(self, role: str, reason: str) -> None:
        self.role = role
        self.reason = reason
        super().__init__(f"{role}: lost: {reason}")


class WorldNotOpen(PPOJobError):
    """The ranks of an attempt did not find each other: the attempt cannot begin."""


class ChannelLost(PPOJobError):
    """A channel to the ranks of another role is of no use any more.

    The rank that meets this keeps its process: it answers its request as failed, and the controller
    takes that for the loss of the other role, which then gets its next attempt and the next
    channel.
    """

    def __init__(self, channel: str, reason: str) -> None:
        super().__init__(f"{channel}: lost: {reason}")


class Fenced(PPOJobError):
    """Something of an older attempt still speaks; it must stop, and its answer is not used."""

    def __init__(self, role: str, got: int, current: int) -> None:
        super().__init__(f"{role}: got attempt {got}: it ended; the current attempt is {current}")


class StorageError(PPOJobError):
    """A write did not reach the disk."""

    def __init__(self, path: Path, reason: str) -> None:
        self.path = path
        super().__init__(f"{path}: {reason}")


class DamagedCheckpoint(PPOJobError):
    """A file of a checkpoint is absent, cut, changed or foreign.

    Attributes:
        file: the file, relative to the checkpoints folder (``step-000020/manifest.json``).
    """

    def __init__(self, file: str, reason: str) -> None:
        self.file = file
        self.reason = reason
        super().__init__(f"{file}: {reason}")


class CheckpointLost(DamagedCheckpoint):
    """Checkpoints were saved and none is left to read: never start from step 0 in silence."""


class RewardFailed(PPOJobError):
    """A reward function did not give a usable answer.

    Attributes:
        where: function and row (``gsm8k: row 12``).
        reason: one line; lines with prompt and response below it where the controller raises it.
        row: number of the response in its batch; None where it is not a single one.
        response: its text, or the beginning of it.
    """

    def __init__(
        self, where: str, reason: str, *, row: int | None = None, response: str = ""
    ) -> None:
        self.where = where
        self.reason = reason
        self.row = row
        self.response = response
        super().__init__(f"{where}: {reason}")


class NonFiniteReward(RewardFailed):
    """A reward function answered NaN or infinity, which would poison every weight."""

    def __init__(
        self,
        where: str,
        value: float,
        why: str = "a reward must be a finite number",
        *,
        row: int | None = None,
        response: str = "",
    ) -> None:
        self.value = value
        super().__init__(where, f"got {value}: {why}", row=row, response=response)


class RetrievalFailed(PPOJobError):
    """A service that finds passages gave no usable answer, however often it was asked."""


class InjectedFault(PPOJobError):
    """Raised by a failpoint armed with ``raise``; never in a real job."""


class Wrong(Exception):
    """What is wrong with something of the user's; the caller knows where it is written."""

    def __init__(self, got: str, why: str, allowed: str) -> None:
        self.got, self.why, self.allowed = got, why, allowed
        super().__init__(got, why, allowed)

    def __str__(self) -> str:
        """What follows a place in a message."""
        return f"got {self.got}: {self.why}; {self.allowed}"


class SamplerFailed(PPOJobError):
    """A function that chooses the rows of a step did not give them."""
