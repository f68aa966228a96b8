"""Inputs and outputs of reward functions, and how scorers find an answer."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypedDict

from ppojob_trainer.json_value import Json

ValueKind = Literal["number", "text"]
"""Type of a value that scorers return beside the score."""

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
        response: decoded text, without the prompt.
        ground_truth: ``reward_model.ground_truth`` of the row.
        response_tokens: the end token included.
        finish_reason: ``stop``, or ``length`` if the response reached the limit.
        prompt: number of the prompt that it answers.
    """

    row: int
    data_source: str
    response: str
    ground_truth: Json
    extra_info: Mapping[str, Json] = field(default_factory=dict)
    response_tokens: int = 0
    finish_reason: str = "stop"
    prompt: int = 0


@dataclass(frozen=True, slots=True)
class RewardResult:
    """The score of one response, and named values for validation metrics.

    "acc" is always among the values: 1 or 0 from the built-in scorers, else what the function gave
    under that name, else the score (as in verl). "pred" is the answer that was read, for majority
    votes.
    """

    score: float
    extras: Mapping[str, float | str]


@dataclass(frozen=True, slots=True)
class Row:
    """A row, for scorers that need more than response and truth."""

    data_source: str = ""
    extra_info: Mapping[str, Json] = field(default_factory=dict)


class Verdict(TypedDict):
    """What a built-in scorer returns: the form that users' functions may return too."""

    score: float
    acc: float
    pred: str


def value_kinds(values: Iterable[Mapping[str, float | str]]) -> dict[str, ValueKind]:
    """Names of the values of rows, sorted: text where any row has text."""
    kinds: dict[str, ValueKind] = {}
    for own in values:
        for name, value in own.items():
            if isinstance(value, str) or name not in kinds:
                kinds[name] = "text" if isinstance(value, str) else "number"
    return dict(sorted(kinds.items()))


_BOX = "\\boxed{"
NO_ANSWER = "[INVALID]"
"""The prediction of a response without an answer (verl's word for it)."""


def text_verdict(
    prediction: str | None, ground_truth: Json, *, score: float, format_score: float
) -> Verdict:
    """As `verdict`; right is what equals the truth letter by letter.

    Raises:
        TypeError: the truth is no text; the truths that rows tell tools are not checked before.
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
    """Return the verdict of a scorer with its own scores."""
    shown = NO_ANSWER if prediction is None else prediction
    return {"score": score, "acc": float(is_right), "pred": shown}


def last_answer(response: str) -> str | None:
    """Return the text of the last whole <answer> block, stripped; None without one.

    Departs from TinyZero, which reads the conversation behind the FIRST "Assistant:", in countdown
    the LAST line of that alone: a trailing newline scores 0 there. In multiply all lines count, but
    in both an answer over two lines is none. A reward function here gets the response alone, so
    there is nothing to skip, and an answer may have several lines.
    """
    closed = response.split("</answer>")[:-1]
    answers = [text.partition("<answer>")[2] for text in closed if "<answer>" in text]
    return answers[-1].strip() if answers else None


def last_boxed(response: str) -> str | None:
    r"""Return what the last ``\boxed{`` holds, up to the brace that closes it; None without one.

    A last box that never ends is no answer, also where another one stands before it.
    """
    start = response.rfind(_BOX)
    if start < 0:
        return None
    start += len(_BOX)
    depth = 1
    for position in range(start, len(response)):
        depth += {"{": 1, "}": -1}.get(response[position], 0)
        if depth == 0:
            return response[start:position]
    return None


def text_problem(ground_truth: object) -> str | None:
    """Say what is wrong with the ground truth of a scorer of mathematics."""
    if isinstance(ground_truth, str) and ground_truth.strip():
        return None
    return r'the answer as text, such as "\\frac{1}{2}"'
