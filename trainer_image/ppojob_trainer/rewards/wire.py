"""Messages between the scoring pool and its children."""

from typing import Any

import msgspec

from ppojob_trainer.children.frames import Loaded, Numbered
from ppojob_trainer.sandbox.executor import Settings


class Judge(msgspec.Struct, frozen=True):
    """The job's judge, for functions."""

    url: str  # URL up to ``/v1``
    model: str  # name of the model there, which is its folder
    patience: float  # extra seconds of a call, for a restart of the judge


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
    """Load functions; calls refer to them by position."""

    rewards: list[Function]
    sandbox: Settings
    # Whether these are all built-in scorers, of which few will be called: each is prepared by its
    # first call.
    is_routed: bool
    judge: Judge | None = None


class FunctionsLoaded(Loaded, frozen=True):
    """Answer to ``LoadFunctions``."""

    # Positions of functions that take all responses at once.
    batched: list[int] = msgspec.field(default_factory=list)
    # Positions of functions that take all responses to a prompt.
    grouped: list[int] = msgspec.field(default_factory=list)


class CallFunction(Numbered, frozen=True, tag=True):
    """Score responses with one call of a function."""

    # Position in ``LoadFunctions``; if neither batched nor grouped, it takes one response.
    function: int
    # JSON object of lists with an entry for each response, by the argument names of batched
    # functions (``custom.SINGULAR``).
    columns: bytes


class Scored(msgspec.Struct, frozen=True):
    """A function's score of a response, or the failure of a response or a call."""

    score: float = 0.0  # valid if `reason_code` is empty
    extras: dict[str, float | str] = {}
    reason_code: str = ""  # code of the failure; empty for a score
    got: str = ""  # what it returned or raised, in one line
    why: str = ""


class Called(Numbered, frozen=True):
    """Answer to ``CallFunction``."""

    # One for each response, in order; empty if the call failed.
    scores: list[Scored] = msgspec.field(default_factory=list)
    failure: Scored | None = None


class NotScored(msgspec.Struct, frozen=True):
    """Why responses have no scores."""

    message: str
    # Number in its batch of the (first) response that could not be scored.
    row: int | None = None
    response: str = ""  # its text, possibly truncated


ScorerRequest = LoadFunctions | CallFunction
