"""Messages of generation and weight sync."""

from typing import Final

import msgspec

from ppojob_trainer.rpc.messages.agents import ToolsPeer
from ppojob_trainer.rpc.messages.rows import BatchName

OF_DATA: Final = -1
"""In place of a weights version: the data gave these tokens, and they are trained on."""


class Interaction(msgspec.Struct, frozen=True, array_like=True):
    """The user simulator of a row.

    Attributes:
        arguments: JSON object: the row's arguments for it.
        prompt: JSON list of the messages that the model answers first.
    """

    name: str
    arguments: bytes
    prompt: bytes


class PromptTokens(msgspec.Struct, frozen=True, array_like=True):
    """A prompt by its number in the data and its token ids.

    Attributes:
        created: what its tools are made with: JSON by tool.
        tools: names of those that may be called; empty for all.
        interaction: who answers the model; None where the row names nobody.
        agent: that makes its rows; empty where rows are no conversations.
        pictures: that it shows, as `data.pictures.packed` has them.
        teacher_tokens: what the reference reads in its place; empty where it reads the prompt.
        given: responses that take the place of its first samples in training.
    """

    prompt: int
    tokens: list[int]
    created: dict[str, bytes] = {}
    tools: list[str] = []
    interaction: Interaction | None = None
    agent: str = ""
    pictures: bytes = b""
    teacher_tokens: list[int] = []
    given: list[list[int]] = []


class Conversations(msgspec.Struct, frozen=True):
    """Rows have several turns.

    Attributes:
        tools: where calls are made; none where there are no tools.
        retrievers: where calls of `search` are answered; none where the tools do that.
        attempt: of engines that may be lost without a rewind, and then draw anew.
        began: what chat templates tell as the time, as in prompts: unix seconds.
    """

    tools: list[ToolsPeer]
    rewinds: int
    retrievers: list[ToolsPeer] = []
    attempt: int = 0
    began: float = 0.0


class Generate(msgspec.Struct, frozen=True):
    """Generate `samples` responses for each prompt; the rows stay on the rank.

    Attributes:
        purpose: `train` or `validation`; the store of rows has one batch for each.
        step: step of the loop, which goes into every sample's seed.
        first: position in the batch of the first of these prompts.
        prompts: the share of this rank's engine of the prompts, in the order of the batch.
        kept: run `[first, last)` of positions whose rows this rank keeps: all ranks of an engine
            generate the same, and each keeps a part.
        greedy: whether each prompt has a greedy response too, a batch `greedy` of its own.
        conversations: absent where each row is one response.
        ahead: of the steps behind it, whose rows are drawn beside these as far as they come.
        number: of the round among all of the run, from 1, where rounds are drawn before it is known
            which step takes them; 0 where step and round name the batch. It goes into seeds then.
    """

    purpose: str
    step: int
    first: int
    prompts: list[PromptTokens]
    samples: int
    kept: tuple[int, int]
    round: int = 0
    greedy: bool = False
    conversations: Conversations | None = None
    ahead: list["Generate"] = []
    number: int = 0


class Generated(msgspec.Struct, frozen=True):
    """Lengths of the responses (rows, prompt-major) and which of them ran into the limit.

    Attributes:
        lengths: (rows,) tokens.
        greedy: the same of greedy responses, where they were asked for.
        figures: (rows,) JSON of each row's figures, where rows have several turns.
        tool_seconds: (rows,) that the calls of each row took, likewise.
        versions: (rows,) tokens of each row by the version of the weights that drew them, or
            `OF_DATA`.
        later_picture_bytes: (rows,) of the pictures that each was shown behind its prompt.
        counts: what the engine has counted, as `RolloutEngine.counts` has it.
    """

    lengths: list[int]
    truncated: list[bool]
    greedy: "Generated | None" = None
    figures: list[bytes] = []
    tool_seconds: list[float] = []
    versions: list[dict[int, int]] = []
    later_picture_bytes: list[int] = []
    counts: dict[str, int] = {}


class RowsDrawn(msgspec.Struct, frozen=True):
    """How far a generation phase of an engine has come; 0 of 0 where none is under way."""

    ended: int
    asked: int


class LoadRows(msgspec.Struct, frozen=True):
    """Take up rows that lie on the disk instead of generating them.

    Attributes:
        purpose: `train`, or `greedy` for what those are compared with.
        folder: of the step's rows, relative to the run folder, or of another run.
        first: position in the batch of the first of this rank's prompts.
        last: one past the last.
        prompts: this rank's share of the prompts, in the order of the batch.
    """

    purpose: str
    folder: str
    parts: list[str]
    first: int
    last: int
    prompts: list[PromptTokens]
    samples: int
    round: int = 0


class SyncWeights(msgspec.Struct, frozen=True):
    """Bring the trainer's weights into the rollout engine.

    Attributes:
        refresh_reference: whether the reference, which lives in the same ranks, takes them over.
    """

    version: int
    refresh_reference: bool = False


class BringWeights(msgspec.Struct, frozen=True):
    """Bring the policy's weights to engines in pods of their own; both sides are told together."""

    role: str
    version: int


class HandOver(msgspec.Struct, frozen=True):
    """Bring rows from the ranks that made them to those that own them; both are told together.

    Attributes:
        batches: that were made together: of one step and round.
        makers: run `[first, last)` of prompts of each rank that has made some.
        owners: run of prompts of each rank that is to own some.
    """

    role: str
    batches: list[BatchName]
    makers: list[tuple[int, int]]
    owners: list[tuple[int, int]]


class Recall(msgspec.Struct, frozen=True):
    """Say what this rank was handed over of some batches."""

    batches: list[BatchName]


class Recalled(msgspec.Struct, frozen=True):
    """The rows of a rank, as they were told when they were made; None where it lacks some."""

    rows: Generated | None
