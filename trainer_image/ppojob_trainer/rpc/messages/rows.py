"""Messages about rows: index, owners and transfers."""

import msgspec

from ppojob_trainer.rewards.records import ValueKind
from ppojob_trainer.rows.batch_index import BatchIndex

CHANNEL_SECONDS = 10.0
"""Timeout of an operation on a channel between idle ranks."""


class BatchName(msgspec.Struct, frozen=True, order=True, array_like=True):
    """Name of a batch: step, purpose and generation round, after a number of rewinds."""

    rewinds: int
    step: int
    purpose: str
    round: int = 0

    @property
    def label(self) -> str:
        """Return the name within the step, without the number of the first round."""
        return f"{self.purpose}/{self.round}" if self.round else self.purpose


class PlaceRows(msgspec.Struct, frozen=True):
    """Set the index of the training rows at an owner.

    Attributes:
        origins: (prompts,) round and position of each prompt; None for a single round.
        again: whether the index replaces an earlier one.
        answers: (prompts,) ground truths, if their probability is a reward.
    """

    index: BatchIndex
    origins: list[tuple[int, int]] | None = None
    again: bool = False
    answers: list[str] = msgspec.field(default_factory=list)


class Reprompt(msgspec.Struct, frozen=True):
    """Build the teacher prompts of this rank's rows; see `distillation.reprompt`.

    Attributes:
        prompts: (prompts,) messages or text as JSON.
        succeeded: rows that prompts may show, numbered within the rank.
        dropped: rows without a score, likewise.
        feedback: (rows,) feedback; empty text for none.
        began: current time for chat templates, in unix seconds.
    """

    prompts: list[bytes]
    succeeded: list[int]
    dropped: list[int]
    feedback: list[str]
    began: float


class Reprompted(msgspec.Struct, frozen=True):
    """The result of `Reprompt`.

    Attributes:
        tokens: (rows,) lengths of the teacher prompts.
        taught: rows with a teacher prompt.
        first: text of the first teacher prompt.
    """

    tokens: list[int]
    taught: list[int]
    first: str = ""


class OpenChannel(msgspec.Struct, frozen=True):
    """Open the channel between the owners of rows and another role.

    Attributes:
        key: unique name of the channel.
        owners: number of owners, the first members of the channel.
        consumers: number of ranks of the other role, the last members.
        store_host: host of the owners' rendezvous store.
        store_key: prefix of the keys of the owners' attempt.
        seconds: timeout of each operation.
    """

    role: str
    key: str
    owners: int
    consumers: int
    store_host: str
    store_key: str
    seconds: float = CHANNEL_SECONDS


class MoveRows(msgspec.Struct, frozen=True):
    """Move the training rows from their owners to the other role; both sides get the request.

    Attributes:
        batch: name of the batch; a consumer that has it keeps its computed columns.
        index: index of the rows at their owners.
    """

    role: str
    batch: BatchName
    index: BatchIndex


class MoveColumns(msgspec.Struct, frozen=True):
    """Move columns of rows, to the owners or from them; both sides get the request."""

    role: str
    index: BatchIndex
    columns: list[str]
    to_owners: bool


class CutChannel(msgspec.Struct, frozen=True):
    """Abort all waits on the channel to a lost role."""

    role: str


class WriteRows(msgspec.Struct, frozen=True):
    """Write rows of this rank as a part of a parquet folder.

    Attributes:
        folder: relative to the run folder.
        first: batch position of the first prompt.
        scores: (rows,) scores.
        ground_truths: (prompts,) JSON.
        extras: (rows,) further values of reward functions, as JSON.
        value_kinds: types of those values in the whole batch, for the schema.
        extra_infos: (prompts,) JSON objects.
    """

    purpose: str
    step: int
    folder: str
    part: int
    first: int
    scores: list[float]
    data_sources: list[str]
    ground_truths: list[bytes]
    extras: list[bytes]
    value_kinds: dict[str, ValueKind]
    round: int = 0
    extra_infos: list[bytes] = []
