"""Which scorer a row gets: verl's and TinyZero's rules for the scorers that exist."""

from collections.abc import Callable
from dataclasses import dataclass

from ppojob_trainer.json_value import Json
from ppojob_trainer.rewards import addition, countdown, gsm8k, multiply
from ppojob_trainer.rewards.records import Verdict


@dataclass(frozen=True, slots=True)
class Scorer:
    """A built-in scorer.

    Attributes:
        score: (response, ground truth, **arguments) -> verdict.
        ground_truth_problem: says what form is wanted, where a ground truth has another.
        data_sources: values of ``data_source`` that it scores.
        words: a data source that holds one of these words is scored by it too.
    """

    score: Callable[..., Verdict]
    ground_truth_problem: Callable[[Json], str | None]
    data_sources: tuple[str, ...]
    words: tuple[str, ...] = ()


SCORERS: dict[str, Scorer] = {
    "gsm8k": Scorer(gsm8k.gsm8k, gsm8k.ground_truth_problem, ("openai/gsm8k",)),
    "addition": Scorer(addition.addition, addition.ground_truth_problem, ("ppojob/addition",)),
    "countdown": Scorer(
        countdown.countdown, countdown.ground_truth_problem, ("countdown",), words=("countdown",)
    ),
    "multiply": Scorer(
        multiply.multiply,
        multiply.ground_truth_problem,
        ("multiply",),
        words=("multiply", "arithmetic"),
    ),
}


def route(data_source: str) -> str | None:
    """Name of the scorer of a data source: an exact match, else TinyZero's match by a word."""
    for name, scorer in SCORERS.items():
        if data_source in scorer.data_sources:
            return name
    for name, scorer in SCORERS.items():
        if any(word in data_source for word in scorer.words):
            return name
    return None
