"""Messages of scoring."""

import msgspec

from ppojob_trainer.rewards.wire import NotScored
from ppojob_trainer.rpc.messages.rows import BatchName


class SendTexts(msgspec.Struct, frozen=True):
    """Send the responses of rows `[first, last)` as text to a rank of `role` at `host`."""

    batch: BatchName
    role: str
    host: str
    port: int
    attempt: int
    first: int
    last: int


class Texts(msgspec.Struct, frozen=True):
    """Responses as text, from their owner to a scorer."""

    batch: BatchName
    first: int
    texts: list[str]


class ScoreItem(msgspec.Struct, frozen=True):
    """Metadata of rows `[first, last)` of one prompt."""

    first: int
    last: int
    data_source: str  # selects the reward function
    ground_truth: bytes  # JSON
    extra_info: bytes  # JSON object
    lengths: list[int]  # (rows,) response tokens
    truncated: list[bool]  # (rows,) whether the length limit was reached
    figures: list[bytes] = []  # (rows,) JSON, added to `extra_info`; empty for single-turn rows


class Score(msgspec.Struct, frozen=True):
    """Score rows whose texts were sent before."""

    batch: BatchName
    items: list[ScoreItem]


class RowScore(msgspec.Struct, frozen=True, array_like=True):
    """The score of a row, and further values as JSON."""

    row: int
    score: float
    extras: bytes


class Scored(msgspec.Struct, frozen=True):
    """Scores in row order, or a failure."""

    scores: list[RowScore]
    failure: NotScored | None = None


class ModelScoreItem(msgspec.Struct, frozen=True, array_like=True):
    """Rows `[first, last)` for a reward model, and their prompt: JSON of text or chat messages."""

    first: int
    last: int
    prompt: bytes
    images: bytes = b""  # those of the prompt, as by `images.packed`; empty without any


class ScoreByModel(msgspec.Struct, frozen=True):
    """Score rows by the reward model, a collective call of its ranks."""

    batch: BatchName
    items: list[ModelScoreItem]
    began: float  # current time for chat templates, in unix seconds


class ModelScored(msgspec.Struct, frozen=True):
    """Scores in row order."""

    scores: list[float]
