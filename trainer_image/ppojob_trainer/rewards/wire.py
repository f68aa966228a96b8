"""What the scoring pool and its children say to each other."""

import msgspec

from ppojob_trainer.sandbox.settings import SandboxSettings


class LoadFunctions(msgspec.Struct, frozen=True, tag=True):
    """Load these; calls name them by position.

    Attributes:
        rewards: JSON of a ``RewardSpec`` each.
        is_routed: these are all scorers that there are, and few will be called: each is got ready
            by its first call, and says then what it lacks.
    """

    rewards: list[bytes]
    sandbox: SandboxSettings
    is_routed: bool


class Loaded(msgspec.Struct, frozen=True):
    """Answer to ``LoadFunctions``.

    Attributes:
        problems: a line each, for the user; empty when all is well.
        batched: positions of the functions that take all responses at once.
    """

    problems: list[str]
    batched: list[int] = []


class CallFunction(msgspec.Struct, frozen=True, tag=True):
    """Score responses with one call of a function; each list has an entry for each of them.

    Attributes:
        number: of the call; the answer repeats it.
        function: position in ``LoadFunctions``; one that is not batched takes one response.
        ground_truths: JSON list.
        extra_infos: JSON list of objects.
        finish_reasons: ``stop`` or ``length``.
    """

    number: int
    function: int
    data_sources: list[str]
    responses: list[str]
    ground_truths: bytes
    extra_infos: bytes
    response_tokens: list[int]
    finish_reasons: list[str]


class Scored(msgspec.Struct, frozen=True):
    """What a function said of a response, or of a whole call.

    Attributes:
        reason_code: empty where it gave a usable answer; else why not, with the two below.
        got: what it returned or raised, in one line.
    """

    score: float = 0.0
    extras: dict[str, float | str] = {}
    reason_code: str = ""
    got: str = ""
    why: str = ""


class Called(msgspec.Struct, frozen=True):
    """Answer to ``CallFunction``.

    Attributes:
        scores: one for each response, in order; empty where the whole call gave no answer.
        failure: why not.
    """

    number: int
    scores: list[Scored] = []
    failure: Scored | None = None


class NotScored(msgspec.Struct, frozen=True):
    """Why responses have no scores.

    Attributes:
        message: one line.
        row: number of the response that is to blame, in its batch; None where none is.
        response: its text, or the beginning of it.
    """

    message: str
    row: int | None = None
    response: str = ""


ScorerRequest = LoadFunctions | CallFunction
