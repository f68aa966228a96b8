"""Messages about demonstrations."""

import msgspec

from ppojob_trainer.data.prompt_store import AnswerPart
from ppojob_trainer.rows.batch_index import BatchIndex


class Demonstration(msgspec.Struct, frozen=True, array_like=True):
    """A prompt by its number in the data and its token ids, and what is answered.

    All rows of a request have equally many answers. `reward` is of the first one: with KTO 1 where
    it is good and -1 where it is bad, and the others belong to other prompts; of a pair the margin.
    `pictures` are those of the prompt, as `data.pictures.packed` has them.
    """

    prompt: int
    tokens: list[int]
    answers: tuple[tuple[AnswerPart, ...], ...]
    reward: float = 0.0
    pictures: bytes = b""


class Demonstrate(msgspec.Struct, frozen=True):
    """Own these train rows, whose answers are given instead of generated.

    Attributes:
        first: position in the batch of the first of them.
    """

    first: int
    rows: list[Demonstration]


class GivenRows(msgspec.Struct, frozen=True):
    """Rows that stand beside those of the step: held-out ones, or what is learnt with them.

    Attributes:
        given: those of this rank, maybe none.
        index: of all of them.
    """

    given: Demonstrate
    index: BatchIndex
