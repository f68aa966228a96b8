"""Messages about rows: their index, owners and transfers."""

import msgspec

from ppojob_trainer.rewards.records import ValueKind
from ppojob_trainer.rows.batch_index import BatchIndex

CHANNEL_SECONDS = 10.0
"""Limit of an operation on a channel between sides that do nothing else meanwhile."""


class BatchName(msgspec.Struct, frozen=True, order=True, array_like=True):
    """Name of a batch: step, purpose and generation round, after so many rewinds of the job."""

    rewinds: int
    step: int
    purpose: str
    round: int = 0

    @property
    def label(self) -> str:
        """Name the batch within its step; that of the only round is the purpose."""
        return f"{self.purpose}/{self.round}" if self.round else self.purpose


class PlaceRows(msgspec.Struct, frozen=True):
    """Tell an owner of training rows where all other rows are.

    Attributes:
        origins: (prompts,) round and position in it of each prompt; None: those of the one round.
        again: the rows are placed already, and the index replaces the earlier one.
        answers: (prompts,) their ground truths as text, if their probability is a reward.
    """

    index: BatchIndex
    origins: list[tuple[int, int]] | None = None
    again: bool = False
    answers: list[str] = msgspec.field(default_factory=list)


class Reprompt(msgspec.Struct, frozen=True):
    """Build the teacher prompts of placed rows; see `distillation.reprompt`.

    Attributes:
        prompts: JSON of the prompts of this rank, messages or text.
        succeeded: its rows that others may be shown, by its own numbering.
        dropped: its rows without a score, which are not trained on, likewise.
        feedback: (rows,) feedback on each; empty for none.
        began: time for chat templates, as in prompts: unix seconds.
    """

    prompts: list[bytes]
    succeeded: list[int]
    dropped: list[int]
    feedback: list[str]
    began: float


class Reprompted(msgspec.Struct, frozen=True):
    """The result of `Reprompt`.

    Attributes:
        tokens: (rows,) length of each row's teacher prompt.
        taught: the rows with a teacher prompt; `first` is the first one's prompt, as text.
    """

    tokens: list[int]
    taught: list[int]
    first: str = ""


class OpenChannel(msgspec.Struct, frozen=True):
    """Open the channel between the owners of rows and another role, in their present attempts.

    Attributes:
        key: names the pair of attempts.
        owners: ranks of the owning role, members 0, 1, ... of the channel.
        consumers: ranks of the other role, the members behind those.
        store_host: name of the pod whose rank 0 hosts the owners' store.
        store_key: prefix of the keys of the owners' attempt.
        seconds: limit of opening it and of each operation on it.
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
        batch: their batch; a consumer that has it keeps the columns it has filled in.
        index: of the rows at their owners.
    """

    role: str
    batch: BatchName
    index: BatchIndex


class MoveColumns(msgspec.Struct, frozen=True):
    """Move columns of rows that both roles have; both sides get the request.

    Attributes:
        to_owners: towards the owners, else away from them.
    """

    role: str
    index: BatchIndex
    columns: list[str]
    to_owners: bool


class CutChannel(msgspec.Struct, frozen=True):
    """Abort all waits on the channel to a lost role."""

    role: str


class WriteRows(msgspec.Struct, frozen=True):
    """Write rows that this rank owns as a part of a parquet folder.

    Attributes:
        folder: relative to the run folder.
        first: position in the batch of the first of their prompts.
        scores: of the rows, in row order.
        ground_truths: JSON, of their prompts.
        extras: further values of the scorers as JSON, in row order.
        value_kinds: of those values in the whole batch, so that all parts have the same columns.
        extra_infos: JSON objects, of their prompts.
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
