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
        created: constructor arguments of its tools: JSON by tool.
        tools: names of allowed tools; empty for all.
        interaction: the row's user simulator, or None.
        agent: agent of its rows; empty for single-turn rows.
        pictures: its pictures, packed by `data.pictures.packed`.
        teacher_tokens: tokens that the reference reads in its place; empty if it reads the prompt.
        given: given responses that replace its first samples in training.
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
    """Settings of multi-turn rows.

    Attributes:
        tools: ranks that run tool calls; empty without tools.
        retrievers: ranks that answer `search` calls; empty if the tools role does.
        attempt: of engines that may be lost without a rewind, and then generate anew.
        began: time for chat templates, as in prompts: unix seconds.
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
        step: step of the loop, a part of every sample's seed.
        first: position in the batch of the first of these prompts.
        prompts: the prompts of this rank's engine, in batch order.
        kept: run `[first, last)` of positions whose rows this rank keeps: all ranks of an engine
            generate the same, and each keeps a part.
        greedy: whether to generate a greedy response per prompt too, as a batch `greedy`.
        conversations: absent for single-turn rows.
        ahead: batches of the next steps, generated beside these as far as they get.
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
    """Lengths of the responses (rows, prompt-major), and which of them reached the limit.

    Attributes:
        lengths: (rows,) tokens.
        greedy: the same of greedy responses, where they were asked for.
        figures: (rows,) JSON of each row's figures, where rows have several turns.
        tool_seconds: (rows,) that the calls of each row took, likewise.
        versions: (rows,) token counts by version of the weights that generated them, or `OF_DATA`.
        later_picture_bytes: (rows,) bytes of the pictures after the prompt.
        counts: engine counters (`RolloutEngine.counts`).
    """

    lengths: list[int]
    truncated: list[bool]
    greedy: "Generated | None" = None
    figures: list[bytes] = []
    tool_seconds: list[float] = []
    versions: list[dict[int, int]] = []
    later_picture_bytes: list[int] = []
    counts: dict[str, int] = {}


class AskRowsDrawn(msgspec.Struct, frozen=True):
    """Ask for the progress of a generation phase; `leaves` also gives it up, if it is a validation.

    It is then answered as failed, at the next step of the engine.
    """

    leaves: bool = False


class RowsDrawn(msgspec.Struct, frozen=True):
    """Progress of an engine's generation phase; 0 of 0 without one."""

    ended: int
    asked: int


class LoadRows(msgspec.Struct, frozen=True):
    """Load rows from disk instead of generating them (replay).

    Attributes:
        purpose: `train`, or `greedy` for the baseline.
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
    """Weight sync: load the trainer's weights into the rollout engine.

    Attributes:
        refresh_reference: whether the reference, in the same ranks, is updated from them.
    """

    version: int
    refresh_reference: bool = False


class BringWeights(msgspec.Struct, frozen=True):
    """Weight sync to engines in pods of their own; both sides get the request together."""

    role: str
    version: int


class HandOver(msgspec.Struct, frozen=True):
    """Move rows from the ranks that generated them to their owners; both sides get the request.

    Attributes:
        batches: batches generated together: of one step and round.
        makers: range `[first, last)` of prompts that each rank has generated.
        owners: range of prompts that each rank is to own.
    """

    role: str
    batches: list[BatchName]
    makers: list[tuple[int, int]]
    owners: list[tuple[int, int]]


class Recall(msgspec.Struct, frozen=True):
    """Report which rows of some batches this rank has received."""

    batches: list[BatchName]


class Recalled(msgspec.Struct, frozen=True):
    """The metadata of a rank's rows, as when generated; None if it lacks some."""

    rows: Generated | None
