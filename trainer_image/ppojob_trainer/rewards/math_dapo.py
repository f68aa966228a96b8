r"""DAPO: the text after the last "Answer:", compared with the truth in Minerva's normal form.

Yu et al. 2025, arXiv:2503.14476; Lewkowycz et al. 2022, arXiv:2206.14858, appendix D, for the form.
The rule is that of verl's ``reward_score/math_dapo.py``.
"""

import re

from ppojob_trainer.rewards.records import Verdict, last_boxed, scored

_READ_CHARACTERS = 300
_BOX_CHARACTERS = 100
_ANSWER = re.compile(r"answer\s*:\s*([^\n]+)", re.IGNORECASE)
_REPLACED = (
    *(("an ", ""), ("a ", ""), (".$", "$"), ("\\$", ""), ("\\ ", ""), (" ", "")),
    *(("mbox", "text"), (",\\text{and}", ","), ("\\text{and}", ","), ("\\text{m}", "\\text{}")),
)
_UNITS = (
    *("square", "ways", "integers", "dollars", "mph", "inches", "hours", "km", "units", "\\ldots"),
    *("sue", "points", "feet", "minutes", "digits", "cents", "degrees", "cm", "gm", "pounds"),
    *("meters", "meals", "edges", "students", "childrentickets", "multiples"),
)
_DROPPED = (
    *(*_UNITS, "\\text{s}", "\\text{.}", "\\text{\ns}", "\\text{}^2", "\\text{}^3", "\\text{\n}"),
    *("\\text{}", "\\mathrm{th}", "^\\circ", "^{\\circ}", "\\;", ",\\!", "{,}", '"', "\\dots"),
)


def math_dapo(
    response: str,
    ground_truth: str,
    *,
    score: float = 1.0,
    wrong_score: float = -1.0,
    strict_box_verify: bool = False,
) -> Verdict:
    r"""Score the last "Answer: ..." within the last 300 characters; the numbers are verl's.

    ``strict_box_verify`` takes the last ``\boxed{...}`` within the last 100 characters instead,
    which must equal the truth exactly.
    """
    if strict_box_verify:
        prediction = last_boxed(response[-_BOX_CHARACTERS:])
        is_right = prediction == ground_truth
    else:
        answers = _ANSWER.findall(response[-_READ_CHARACTERS:])
        prediction = minerva_form(answers[-1]) if answers else None
        is_right = prediction == minerva_form(ground_truth)
    return scored(score if is_right else wrong_score, prediction, is_right=is_right)


def minerva_form(text: str) -> str:
    """Normalise an answer: drop words, units and spaces, and put braces into LaTeX."""
    text = text.rpartition("=")[2]
    for before, after in _REPLACED:
        text = text.replace(before, after)
    for dropped in _DROPPED:
        text = text.replace(dropped, "")
    text = re.sub(r".*?\$(.*?)\$.*", r"$\1$", text)
    for command in ("text", "textbf", "overline"):
        text = re.sub(rf"\\{command}\{{(.*?)\}}", r"\1", text)
    text = re.sub(r"\\boxed\{(.*)\}", r"\1", text)
    text = re.sub(r"frac([^{])(.)", r"frac{\1}{\2}", text)
    text = re.sub(r"sqrt([^{])", r"sqrt{\1}", text).replace("$", "")
    digits = text.replace(",", "")
    return (digits if digits.isdigit() else text).strip()
