"""Products of two numbers (TinyZero)."""

import re

from ppojob_trainer.json_value import Json
from ppojob_trainer.rewards.records import Verdict, last_answer, verdict

# Python's int() takes at most so many digits by default.
_INTEGER = re.compile(r"-?[0-9]{1,4300}")


def multiply(
    response: str, ground_truth: str | int, *, score: float = 1.0, format_score: float = 0.1
) -> Verdict:
    """Score the integer in the last <answer> block.

    ``score`` for the product, ``format_score`` for another integer, 0 without a block or with
    something else in it: TinyZero's numbers (``reward_score/multiply.py``), but:

    Departs from TinyZero: an answer may have several lines (see ``last_answer``); an integer is a
    sign and ASCII digits, where Python's ``int()`` takes "4_2", "+42" and full-width digits too; a
    bad ground truth is reported when the data is read and not in the middle of a run. As there, a
    number of more than 4,300 digits is no answer.
    """
    answer = last_answer(response)
    if answer is None or not _INTEGER.fullmatch(answer):
        return verdict(None, is_right=False, score=score, format_score=format_score)
    is_right = int(answer) == int(ground_truth)
    return verdict(answer, is_right=is_right, score=score, format_score=format_score)


def ground_truth_problem(ground_truth: Json) -> str | None:
    """Return what is allowed, if a ground truth does not have this form."""
    is_number = isinstance(ground_truth, int | str) and not isinstance(ground_truth, bool)
    if is_number and _INTEGER.fullmatch(str(ground_truth)):
        return None
    return "the product, such as 56 or its text"
