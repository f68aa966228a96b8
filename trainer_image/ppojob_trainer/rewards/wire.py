"""Messages between the scoring pool and its children."""

from typing import Any

import msgspec

from ppojob_trainer.children.frames import Loaded, Numbered
from ppojob_trainer.sandbox.executor import Settings


class Judge(msgspec.Struct, frozen=True):
    """The job's own judge, for functions.

    Attributes:
        url: its address, up to ``/v1``.
        model: its name there, which is its folder.
        patience: seconds that a call may wait for it during a restart.
    """

    url: str
    model: str
    patience: float


class Source(msgspec.Struct, frozen=True):
    """The source of a function; one or the other."""

    file: str | None
    package: str | None


class Function(msgspec.Struct, frozen=True):
    """The part of a ``RewardSpec`` that children need; its model loads slowly."""

    function: str
    source: Source | None
    arguments: dict[str, Any]


class LoadFunctions(msgspec.Struct, frozen=True, tag=True):
    """Load these; calls name them by position.

    Attributes:
        is_routed: these are all scorers, and few will be called: each is prepared by its first
            call, and says then what it lacks.
        judge: that of the job; None where it has none.
    """

    rewards: list[Function]
    sandbox: Settings
    is_routed: bool
    judge: Judge | None = None


class FunctionsLoaded(Loaded, frozen=True):
    """Answer to ``LoadFunctions``.

    Attributes:
        batched: positions of the functions that take all responses at once.
        grouped: of those that take all responses to a prompt.
    """

    batched: list[int] = msgspec.field(default_factory=list)
    grouped: list[int] = msgspec.field(default_factory=list)


class CallFunction(Numbered, frozen=True, tag=True):
    """Score responses with one call of a function.

    Attributes:
        function: position in ``LoadFunctions``; one that is neither batched nor grouped takes one
            response.
        columns: JSON object of lists with an entry for each response, by the names that batched
            functions have for them (``custom.SINGULAR``).
    """

    function: int
    columns: bytes


class Scored(msgspec.Struct, frozen=True):
    """A function's score of a response, or of a whole call.

    Attributes:
        reason_code: empty for a usable answer; else the problem, with the two below.
        got: what it returned or raised, in one line.
    """

    score: float = 0.0
    extras: dict[str, float | str] = {}
    reason_code: str = ""
    got: str = ""
    why: str = ""


class Called(Numbered, frozen=True):
    """Answer to ``CallFunction``.

    Attributes:
        scores: one for each response, in order; empty where the whole call gave no answer.
        failure: why not.
    """

    scores: list[Scored] = msgspec.field(default_factory=list)
    failure: Scored | None = None


class NotScored(msgspec.Struct, frozen=True):
    """Why responses have no scores.

    Attributes:
        message: one line.
        row: number in its batch of the response that could not be scored; None where it was no
            single one.
        response: its text, or the beginning of it.
    """

    message: str
    row: int | None = None
    response: str = ""


ScorerRequest = LoadFunctions | CallFunction
