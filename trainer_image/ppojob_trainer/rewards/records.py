"""Inputs and outputs of reward functions, and how scorers find an answer."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypedDict

from ppojob_trainer.json_value import Json

ValueKind = Literal["number", "text"]
"""Type of a value that scorers return besides the score."""

DROPPED: Final = "dropped"
"""Name of a value: 1 for a response that is dropped from training, else 0. All responses have it if
a function has `onError: drop`."""

FAILED: Final = "failed"
"""Name of a value: 1 for a response at which a function failed, if that does not fail the job."""


@dataclass(frozen=True, slots=True)
class RewardItem:
    """One response to score."""

    row: int  # number of the response in the step, for messages
    data_source: str
    response: str  # decoded text, without the prompt
    ground_truth: Json
    extra_info: Mapping[str, Json] = field(default_factory=dict)
    response_tokens: int = 0  # number of tokens, with the end token
    finish_reason: str = "stop"  # ``stop``, or ``length`` if the response reached the limit
    prompt: int = 0  # number of its prompt in the step


@dataclass(frozen=True, slots=True)
class RewardResult:
    """The score of a response, and named values for validation metrics.

    "acc" is always among the values: 1 or 0 from built-in scorers, else the value of this name from
    the function, else the score (as in verl). "pred" is the extracted answer, for majority votes.
    """

    score: float
    extras: Mapping[str, float | str]


@dataclass(frozen=True, slots=True)
class Row:
    """A row, for scorers that need more than response and ground truth."""

    data_source: str = ""
    extra_info: Mapping[str, Json] = field(default_factory=dict)


class Verdict(TypedDict):
    """Result of a built-in scorer, in the form that custom functions may return too."""

    score: float
    acc: float
    pred: str


def value_kinds(values: Iterable[Mapping[str, float | str]]) -> dict[str, ValueKind]:
    """Return the kinds of the values of rows, sorted by name; text if any row has text."""
    kinds: dict[str, ValueKind] = {}
    for own in values:
        for name, value in own.items():
            if isinstance(value, str) or name not in kinds:
                kinds[name] = "text" if isinstance(value, str) else "number"
    return dict(sorted(kinds.items()))


_BOX = "\\boxed{"
NO_ANSWER = "[INVALID]"
"""verl's prediction of a response without an answer."""


def text_verdict(
    prediction: str | None, ground_truth: Json, *, score: float, format_score: float
) -> Verdict:
    """Return the `verdict` on an answer that must equal the ground truth exactly."""
    if not isinstance(ground_truth, str):  # those for tools are not checked earlier
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
    """Build a verdict with a given score."""
    shown = NO_ANSWER if prediction is None else prediction
    return {"score": score, "acc": float(is_right), "pred": shown}


def last_answer(response: str) -> str | None:
    """Return the text of the last whole <answer> block, stripped; None without one.

    Departs from TinyZero, which reads the conversation after the FIRST "Assistant:", and in
    countdown only its LAST line: a trailing newline scores 0 there. In multiply all lines count,
    but an answer over two lines counts in neither. Here a function gets only the response, and an
    answer may have several lines.
    """
    closed = response.split("</answer>")[:-1]
    answers = [text.partition("<answer>")[2] for text in closed if "<answer>" in text]
    return answers[-1].strip() if answers else None


def last_boxed(response: str) -> str | None:
    r"""Return the content of the last ``\boxed{...}``; None without one.

    A last box that is not closed is no answer, also after a complete one.
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
    """Return what is allowed, if a ground truth is not the text of an answer."""
    if isinstance(ground_truth, str) and ground_truth.strip():
        return None
    return r'the answer as text, such as "\\frac{1}{2}"'
