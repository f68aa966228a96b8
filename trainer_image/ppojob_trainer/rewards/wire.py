"""Messages between the scoring pool and its children."""

from typing import Any

import msgspec

from ppojob_trainer.children.frames import Loaded, Numbered
from ppojob_trainer.sandbox.executor import Settings


class Judge(msgspec.Struct, frozen=True):
    """The job's judge, for functions.

    Attributes:
        url: URL up to ``/v1``.
        model: name of the model there, which is its folder.
        patience: extra seconds of a call, for a restart of the judge.
    """

    url: str
    model: str
    patience: float


class Source(msgspec.Struct, frozen=True):
    """Source of a function: a file or a package."""

    file: str | None
    package: str | None


class Function(msgspec.Struct, frozen=True):
    """The part of a ``RewardSpec`` for children, for which pydantic would load too slowly."""

    function: str
    source: Source | None
    arguments: dict[str, Any]


class LoadFunctions(msgspec.Struct, frozen=True, tag=True):
    """Load functions; calls refer to them by position.

    Attributes:
        is_routed: whether these are all built-in scorers, of which few will be called: each is
            prepared by its first call.
    """

    rewards: list[Function]
    sandbox: Settings
    is_routed: bool
    judge: Judge | None = None


class FunctionsLoaded(Loaded, frozen=True):
    """Answer to ``LoadFunctions``.

    Attributes:
        batched: positions of functions that take all responses at once.
        grouped: positions of functions that take all responses to a prompt.
    """

    batched: list[int] = msgspec.field(default_factory=list)
    grouped: list[int] = msgspec.field(default_factory=list)


class CallFunction(Numbered, frozen=True, tag=True):
    """Score responses with one call of a function.

    Attributes:
        function: position in ``LoadFunctions``; if neither batched nor grouped, it takes one
            response.
        columns: JSON object of lists with an entry for each response, by the argument names of
            batched functions (``custom.SINGULAR``).
    """

    function: int
    columns: bytes


class Scored(msgspec.Struct, frozen=True):
    """A function's score of a response, or the failure of a response or a call.

    Attributes:
        score: valid if `reason_code` is empty.
        reason_code: code of the failure; empty for a score.
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
        scores: one for each response, in order; empty if the call failed.
    """

    scores: list[Scored] = msgspec.field(default_factory=list)
    failure: Scored | None = None


class NotScored(msgspec.Struct, frozen=True):
    """Why responses have no scores.

    Attributes:
        row: number in its batch of the response that could not be scored; None for several.
        response: its text, possibly truncated.
    """

    message: str
    row: int | None = None
    response: str = ""


ScorerRequest = LoadFunctions | CallFunction
