"""Sums of small numbers: the task of the demo."""

import re

from ppojob_trainer.json_value import Json
from ppojob_trainer.rewards.records import Verdict, text_verdict

# The "26" of "26.5" or "2,600" is not a match.
_ANSWER = re.compile(r"#### *(-?[0-9]+)(?![0-9]|[.,][0-9])")


def addition(
    response: str, ground_truth: Json, *, score: float = 1.0, format_score: float = 0.1
) -> Verdict:
    """Score the last "#### n": exact, another number (``format_score``), or absent."""
    found = _ANSWER.findall(response)
    prediction = found[-1] if found else None
    return text_verdict(prediction, ground_truth, score=score, format_score=format_score)


def ground_truth_problem(ground_truth: Json) -> str | None:
    """Return what is allowed, if a ground truth does not have this form."""
    if isinstance(ground_truth, str) and re.fullmatch(r"-?[0-9]+", ground_truth):
        return None
    return 'the sum as text, such as "12"'
