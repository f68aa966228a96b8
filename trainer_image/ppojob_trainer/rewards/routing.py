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


class RoutedChecks:
    """Tells the reader of data which rows can be scored when rewards are routed.

    Fulfils ``ppojob_trainer.data.scan.RewardChecks``.
    """

    def data_source_problem(self, data_source: str) -> str | None:
        """Say what is allowed, where no scorer knows the data source."""
        if route(data_source) is not None:
            return None
        known = [source for scorer in SCORERS.values() for source in scorer.data_sources]
        return f"one of {', '.join(known)}, or a function of your own in spec.rewards"

    def ground_truth_problem(self, data_source: str, ground_truth: Json) -> str | None:
        """Say what is allowed, where the ground truth is not of the scorer's form."""
        name = route(data_source)
        return None if name is None else SCORERS[name].ground_truth_problem(ground_truth)


class NamedChecks:
    """The same when ``spec.rewards`` names built-in scorers for every row.

    Args:
        names: the built-in scorers among the rewards.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self._scorers = [SCORERS[name] for name in names]

    def data_source_problem(self, data_source: str) -> str | None:
        """Every data source is scored by all of them."""
        return None

    def ground_truth_problem(self, data_source: str, ground_truth: Json) -> str | None:
        """Say what is allowed, where the ground truth is not of a scorer's form."""
        found = (scorer.ground_truth_problem(ground_truth) for scorer in self._scorers)
        return next((problem for problem in found if problem is not None), None)
