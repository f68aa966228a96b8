"""Messages of demonstrations."""

import msgspec

from ppojob_trainer.data.prompt_store import AnswerPart
from ppojob_trainer.rows.batch_index import BatchIndex


class Demonstration(msgspec.Struct, frozen=True, array_like=True):
    """A prompt (number in the data, token ids) with its answers, as many in each row."""

    prompt: int
    tokens: list[int]
    answers: tuple[tuple[AnswerPart, ...], ...]
    reward: float = 0.0  # of the first answer: KTO's label as 1 or -1, or the margin of a pair
    images: bytes = b""  # images of the prompt, packed by `data.images.packed`


class Demonstrate(msgspec.Struct, frozen=True):
    """Store these rows as the training rows; `first` is the batch position of the first one."""

    first: int
    rows: list[Demonstration]


class GivenRows(msgspec.Struct, frozen=True):
    """Validation rows, or demonstrations in addition to the rows of the step."""

    given: Demonstrate  # rows of this rank, possibly none
    index: BatchIndex  # of all rows
