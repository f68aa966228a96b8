"""What goes into a reward function and what comes out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypedDict

from ppojob_trainer.json_value import Json

DROPPED: Final = "dropped"
"""Value of a response that is left out of training, 1, and of one that is not, 0: of all where a
function says `onError: drop`."""

FAILED: Final = "failed"
"""Value of a response at which a function failed, 1, where that does not fail the job."""


@dataclass(frozen=True, slots=True)
class RewardItem:
    """One response to score.

    Attributes:
        row: number of the response in the step, for messages.
        data_source: the row's column of that name; routes to a built-in scorer.
        response: decoded text of the response, without the prompt.
        ground_truth: ``reward_model.ground_truth`` of the row.
        extra_info: the row's column of that name.
        response_tokens: length of the response, the end token included.
        finish_reason: ``stop``, or ``length`` where the response ran into the limit.
    """

    row: int
    data_source: str
    response: str
    ground_truth: Json
    extra_info: Mapping[str, Json] = field(default_factory=dict)
    response_tokens: int = 0
    finish_reason: str = "stop"


@dataclass(frozen=True, slots=True)
class RewardResult:
    """The score of one response.

    Attributes:
        score: what is optimised; finite.
        extras: named values for validation metrics. "acc" is always among them: 1 or 0 from the
            built-in scorers, else what the function gave under that name, else the score (as in
            verl). "pred" is the extracted answer, for majority votes.
    """

    score: float
    extras: Mapping[str, float | str]


@dataclass(frozen=True, slots=True)
class Row:
    """What a scorer that needs more than response and truth is told of its row."""

    data_source: str = ""
    extra_info: Mapping[str, Json] = field(default_factory=dict)


class Verdict(TypedDict):
    """What a built-in scorer returns: the form that users' functions may return too."""

    score: float
    acc: float
    pred: str


NO_ANSWER = "[INVALID]"
"""The prediction of a response without an answer (verl's word for it)."""


def text_verdict(
    prediction: str | None, ground_truth: Json, *, score: float, format_score: float
) -> Verdict:
    """As `verdict`; right is what equals the truth letter by letter.

    Raises:
        TypeError: the truth is no text, which the rows' check has let through.
    """
    if not isinstance(ground_truth, str):
        raise TypeError(f"ground_truth: got {ground_truth!r}: a number as text")
    is_right = prediction == ground_truth
    return verdict(prediction, is_right=is_right, score=score, format_score=format_score)


def verdict(
    prediction: str | None, *, is_right: bool, score: float, format_score: float
) -> Verdict:
    """Score 0 without an answer, ``format_score`` for a wrong one, ``score`` for the right one."""
    if prediction is None:
        return scored(0.0, None, is_right=False)
    return scored(score if is_right else format_score, prediction, is_right=is_right)


def scored(score: float, prediction: str | None, *, is_right: bool) -> Verdict:
    """What a scorer says that has its own scores."""
    shown = NO_ANSWER if prediction is None else prediction
    return {"score": score, "acc": float(is_right), "pred": shown}
