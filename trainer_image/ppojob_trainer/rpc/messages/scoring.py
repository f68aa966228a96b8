"""Messages of scoring: texts for scorers, and scores."""

import msgspec

from ppojob_trainer.rewards.wire import NotScored
from ppojob_trainer.rpc.messages.rows import BatchName


class SendTexts(msgspec.Struct, frozen=True):
    """Send the responses of rows `[first, last)` as text to a rank that scores them.

    Attributes:
        role: role of that rank.
        host: address or name of its pod.
    """

    batch: BatchName
    role: str
    host: str
    port: int
    attempt: int
    first: int
    last: int


class Texts(msgspec.Struct, frozen=True):
    """Responses as text, from the rank that owns the rows to one that scores them."""

    batch: BatchName
    first: int
    texts: list[str]


class ScoreItem(msgspec.Struct, frozen=True):
    """Metadata of rows `[first, last)`, of one prompt, for a scorer, besides their texts.

    Attributes:
        data_source: selects the scorer.
        ground_truth: JSON of the truth.
        extra_info: JSON of the free fields.
        lengths: (rows,) tokens of the responses.
        truncated: (rows,) whether a response reached the limit.
        figures: (rows,) JSON of turns and tool calls, added to `extra_info`; none for single-turn
            rows.
    """

    first: int
    last: int
    data_source: str
    ground_truth: bytes
    extra_info: bytes
    lengths: list[int]
    truncated: list[bool]
    figures: list[bytes] = []


class Score(msgspec.Struct, frozen=True):
    """Score rows whose text has arrived."""

    batch: BatchName
    items: list[ScoreItem]


class RowScore(msgspec.Struct, frozen=True, array_like=True):
    """The score of a row and the scorer's further values, as JSON."""

    row: int
    score: float
    extras: bytes


class Scored(msgspec.Struct, frozen=True):
    """Scores in the order of the rows, or why there are none."""

    scores: list[RowScore]
    failure: NotScored | None = None


class ModelScoreItem(msgspec.Struct, frozen=True, array_like=True):
    """Rows `[first, last)` for a reward model, and their prompt: JSON of text or chat messages."""

    first: int
    last: int
    prompt: bytes


class ScoreByModel(msgspec.Struct, frozen=True):
    """Score rows whose texts have arrived by the reward model; a collective call of its ranks.

    Attributes:
        began: unix seconds at which the run began, for a chat template that asks for the date.
    """

    batch: BatchName
    items: list[ModelScoreItem]
    began: float


class ModelScored(msgspec.Struct, frozen=True):
    """Scores in the order of the rows."""

    scores: list[float]
