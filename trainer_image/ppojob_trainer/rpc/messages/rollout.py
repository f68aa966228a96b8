"""Messages of generation and weight sync."""

from typing import Final

import msgspec

from ppojob_trainer.rows.row_metadata import RowMetadata
from ppojob_trainer.rpc.messages.agents import ToolsPeer
from ppojob_trainer.rpc.messages.rows import BatchName

OF_DATA: Final = -1
"""In place of a weights version: trained tokens that came from the data."""


class Interaction(msgspec.Struct, frozen=True, array_like=True):
    """The user simulator of a row: its arguments (JSON object) and first messages (JSON list)."""

    name: str
    arguments: bytes
    prompt: bytes


class PromptTokens(msgspec.Struct, frozen=True, array_like=True):
    """A prompt: its number in the data and its token ids."""

    prompt: int
    tokens: list[int]
    created: dict[str, bytes] = {}  # tool -> constructor arguments as JSON
    tools: list[str] = []  # names of allowed tools; empty for all
    interaction: Interaction | None = None  # user simulator, or None
    agent: str = ""  # name of the agent; empty for single-turn rows
    images: bytes = b""  # packed by `data.images.packed`
    teacher_tokens: list[int] = []  # prompt of the reference, if it differs
    given: list[list[int]] = []  # responses of the data that replace its first samples


class Conversations(msgspec.Struct, frozen=True):
    """Settings of multi-turn rows."""

    tools: list[ToolsPeer]  # ranks that run tool calls; empty without tools
    rewinds: int
    retrievers: list[ToolsPeer] = []  # ranks that answer `search` calls; empty if tools do
    attempt: int = 0  # attempt of the engines' role: standalone ones may be lost without a rewind
    began: float = 0.0  # current time for chat templates, in unix seconds


class Generate(msgspec.Struct, frozen=True):
    """Generate `samples` responses for each prompt; the rows stay on the rank."""

    purpose: str  # `train` or `validation`
    step: int  # step of the loop, a part of every sample's seed
    first: int  # batch position of the first prompt
    prompts: list[PromptTokens]  # prompts of this rank's engine, in batch order
    samples: int
    # range `[first, last)` of positions whose rows this rank keeps; all ranks of an engine generate
    # the same
    kept: tuple[int, int]
    round: int = 0
    greedy: bool = False  # whether to also generate a greedy response per prompt
    conversations: Conversations | None = None  # None for single-turn rows
    ahead: list["Generate"] = []  # batches of the next steps, generated as far as they get
    # number of the round in the run, from 1, used in seeds if it is not known yet which step uses
    # the round; else 0
    number: int = 0


class Generated(msgspec.Struct, frozen=True):
    """Metadata of the generated rows, prompt-major."""

    rows: list[RowMetadata]
    greedy: list[RowMetadata] = []  # of the greedy responses, if requested
    counts: dict[str, int] = {}  # engine counters (`RolloutEngine.counts`)


class AskRowsDrawn(msgspec.Struct, frozen=True):
    """Ask for the progress of a generation phase; `aborts` also aborts it, if it is a validation.

    The phase then fails at the next step of the engine.
    """

    aborts: bool = False


class RowsDrawn(msgspec.Struct, frozen=True):
    """Progress of an engine's generation: finished and requested rows; 0 of 0 without one."""

    ended: int
    asked: int


class LoadRows(msgspec.Struct, frozen=True):
    """Load rows from disk instead of generating them (replay)."""

    purpose: str  # `train` or `greedy`
    folder: str  # folder of the rows, relative to the run folder or absolute
    parts: list[str]
    first: int  # batch position of this rank's first prompt; `last` is one past the last
    last: int
    prompts: list[PromptTokens]  # this rank's prompts
    samples: int
    round: int = 0


class SyncWeights(msgspec.Struct, frozen=True):
    """Weight sync: load the trainer's weights into the rollout engine."""

    version: int
    refresh_reference: bool = False  # whether the colocated reference is updated too


class SyncEngineWeights(msgspec.Struct, frozen=True):
    """Weight sync to standalone engines; both sides get the request."""

    role: str
    version: int


class TransferRows(msgspec.Struct, frozen=True):
    """Move rows from the ranks that generated them to their owners; both sides get the request."""

    role: str
    batches: list[BatchName]  # batches of one step and round
    makers: list[tuple[int, int]]  # range `[first, last)` of prompts that each engine rank has
    owners: list[tuple[int, int]]  # range of prompts of each owner


class QueryRows(msgspec.Struct, frozen=True):
    """Report which rows of some batches this rank has received."""

    batches: list[BatchName]


class QueriedRows(msgspec.Struct, frozen=True):
    """The metadata of a rank's rows; None if it lacks some."""

    rows: Generated | None
