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
    """Set the index of the training rows at an owner."""

    index: BatchIndex
    # (prompts,) round and position of each prompt; None for a single round
    origins: list[tuple[int, int]] | None = None
    again: bool = False  # whether the index replaces an earlier one
    # (prompts,) ground truths, if their probability is a reward
    answers: list[str] = msgspec.field(default_factory=list)


class Reprompt(msgspec.Struct, frozen=True):
    """Build the teacher prompts of this rank's rows; see `distillation.reprompt`."""

    prompts: list[bytes]  # (prompts,) messages or text as JSON
    succeeded: list[int]  # rows that prompts may show, numbered within the rank
    dropped: list[int]  # rows without a score, likewise
    feedback: list[str]  # (rows,) empty text for none
    began: float  # current time for chat templates, in unix seconds


class Reprompted(msgspec.Struct, frozen=True):
    """The result of `Reprompt`."""

    tokens: list[int]  # (rows,) lengths of the teacher prompts
    taught: list[int]  # rows with a teacher prompt
    first: str = ""  # text of the first teacher prompt


class OpenChannel(msgspec.Struct, frozen=True):
    """Open the channel between the owners of rows and another role."""

    role: str
    key: str  # unique name of the channel
    owners: int  # number of owners, the first members of the channel
    consumers: int  # number of ranks of the other role, the last members
    store_host: str  # host of the owners' rendezvous store
    store_key: str  # prefix of the keys of the owners' attempt
    seconds: float = CHANNEL_SECONDS  # timeout of each operation


class MoveRows(msgspec.Struct, frozen=True):
    """Move the training rows from their owners to the other role; both sides get the request."""

    role: str
    batch: BatchName  # name of the batch; a consumer that has it keeps its computed columns
    index: BatchIndex  # index of the rows at their owners


class MoveColumns(msgspec.Struct, frozen=True):
    """Move columns of rows, to the owners or from them; both sides get the request."""

    role: str
    index: BatchIndex
    columns: list[str]
    to_owners: bool


class CutChannel(msgspec.Struct, frozen=True):
    """Abort all waits on the channel to a lost role."""

    role: str


class ScoredPrompt(msgspec.Struct, frozen=True, array_like=True):
    """A prompt, and the scores of its rows, for the disk."""

    position: int  # in the batch
    data_source: str
    ground_truth: bytes  # JSON
    extra_info: bytes  # JSON object
    scores: list[float]  # (rows,)
    extras: list[bytes]  # (rows,) further values of reward functions, as JSON


class WriteRows(msgspec.Struct, frozen=True):
    """Write rows of this rank as a part of a parquet folder."""

    purpose: str
    step: int
    folder: str  # relative to the run folder
    part: int
    prompts: list[ScoredPrompt]
    value_kinds: dict[str, ValueKind]  # types of `extras` in the whole batch, for the schema
    round: int = 0
