r"""MATH: the last \boxed{...}, compared with the truth in a normal form of LaTeX.

Hendrycks et al. 2021, arXiv:2103.03874; the rule is that of verl's ``reward_score/math_reward.py``.
"""

import re

from ppojob_trainer.rewards.records import Verdict, last_boxed, verdict

_DROPPED = ("\\left", "\\right", "^{\\circ}", "^\\circ", "\\$")
_UNIT = "\\text{ "


def math_reward(
    response: str, ground_truth: str, *, score: float = 1.0, format_score: float = 0.0
) -> Verdict:
    r"""Score the last box by its normalised text, without computing. The truth has no box.

    The numbers are verl's. "0.5" is 1/2 and "2/4" is ``\frac{2}{4}``, but no fraction is reduced,
    no comma is dropped, and of units only ``\text{ ...}`` is; ``math_verify`` computes. As in verl,
    a ``\boxed`` before a blank has precedence, and its content ends before the next dollar sign.
    """
    answer = boxed_answer(response)
    if answer is None:
        return verdict(None, is_right=False, score=score, format_score=format_score)
    try:
        found, wanted = plain_form(answer), plain_form(ground_truth)
    except ValueError:
        found, wanted = answer, ground_truth
    return verdict(found, is_right=found == wanted, score=score, format_score=format_score)


def plain_form(text: str) -> str:
    r"""Normalise LaTeX: drop spaces, sizes, units and signs, and put braces into fractions.

    Raises ValueError for a ``\frac`` or ``\sqrt`` without an argument, or several units.
    """
    text = text.replace("\n", "").replace("\\!", "").replace("\\\\", "\\")
    text = text.replace("tfrac", "frac").replace("dfrac", "frac")
    for dropped in _DROPPED:
        text = text.replace(dropped, "")
    text, *units = text.split(_UNIT)
    if len(units) > 1:
        raise ValueError("several units")
    text = text.replace("\\\\%", "").replace("\\%", "").replace(" .", " 0.").replace("{.", "{0.")
    if text.startswith("."):
        text = f"0{text}"
    name, *sides = text.split("=")
    if len(sides) == 1 and len(name) <= 2:  # "x = 5" is 5
        text = sides[0]
    text = _with_braces(text)
    return _slash_as_fraction(r"\frac{1}{2}" if text == "0.5" else text)


def boxed_answer(response: str) -> str | None:
    """Return the text of the box that counts; None without one."""
    _, mark, rest = response.rpartition("\\boxed ")
    if mark:
        return rest.partition("$")[0]
    # A last "\boxed" without a brace is no answer, also after one with a brace.
    is_whole = response.rfind("\\boxed") == response.rfind("\\boxed{")
    return last_boxed(response) if is_whole else None


def _with_braces(text: str) -> str:
    r"""``\sqrt3`` with braces, then spaces dropped, then ``\frac12`` with braces."""
    first, *roots = text.split("\\sqrt")
    text = first + "".join(f"\\sqrt{_braced(root)}" for root in roots)
    text = text.replace(" ", "")
    first, *fractions = text.split("\\frac")
    for one in fractions:
        if not one:
            raise ValueError("a fraction of nothing")
        if len(one) == 1 and one != "{":
            return text  # half a fraction: none is changed
    return first + "".join(f"\\frac{_braced_twice(one)}" for one in fractions)


def _braced(text: str) -> str:
    if not text:
        raise ValueError("a root of nothing")
    return text if text[0] == "{" else f"{{{text[0]}}}{text[1:]}"


def _braced_twice(text: str) -> str:
    return text if text[0] == "{" else f"{{{text[0]}}}{_braced(text[1:])}"


def _slash_as_fraction(text: str) -> str:
    parts = re.fullmatch(r"(0|-?[1-9][0-9]*)/(0|-?[1-9][0-9]*)", text)
    return f"\\frac{{{parts[1]}}}{{{parts[2]}}}" if parts else text
