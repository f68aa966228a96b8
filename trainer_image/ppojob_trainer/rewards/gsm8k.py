"""GSM8K: the number after "#### ", the form of the data set's own answers.

Cobbe et al. 2021, arXiv:2110.14168; the rule is that of verl's ``reward_score/gsm8k.py``.
"""

import re
from typing import Literal

from ppojob_trainer.json_value import Json
from ppojob_trainer.rewards.records import Verdict, text_verdict

_READ_CHARACTERS = 300
_STRICT = re.compile(r"#### (-?[0-9.,]+)")
_NUMBER = re.compile(r"[-\u2212]?[0-9.,]+")


def gsm8k(
    response: str,
    ground_truth: Json,
    *,
    method: Literal["strict", "flexible"] = "strict",
    score: float = 1.0,
    format_score: float = 0.0,
) -> Verdict:
    """Score the last answer within the last 300 characters.

    ``strict`` takes the last "#### x" and drops its commas; its numbers are verl's, so "42." is
    not "42". ``flexible`` takes the last number of any kind.

    Departs from verl: ``flexible`` there leaves commas in ("1,234" is not "1234"), keeps a full
    stop at the end of a sentence ("is 42." is not "42") and reads a typographic minus as no minus.
    None of it concerns the answer, so here commas and the full stop are dropped and U+2212 is a
    minus. And an answer of only commas and full stops ("#### ,") is no answer here; verl gives it
    ``format_score``.
    """
    tail = response[-_READ_CHARACTERS:]
    prediction = _last_strict(tail) if method == "strict" else _last_number(tail)
    return text_verdict(prediction, ground_truth, score=score, format_score=format_score)


def ground_truth_problem(ground_truth: Json) -> str | None:
    """Return what is allowed, if a ground truth does not have this form."""
    if isinstance(ground_truth, str) and re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", ground_truth):
        return None
    return 'the number as text without commas, such as "72"'


def _last_strict(text: str) -> str | None:
    found = _STRICT.findall(text)
    if not found or not any(character.isdigit() for character in found[-1]):
        return None
    return str(found[-1]).replace(",", "")


def _last_number(text: str) -> str | None:
    for found in reversed(_NUMBER.findall(text)):
        number = found.replace("\u2212", "-").replace(",", "").rstrip(".")
        if any(character.isdigit() for character in number):
            return str(number)
    return None
