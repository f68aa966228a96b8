r"""Geometry3K as in verl: the last \boxed{...}, and a small score for the form of the response.

Lu et al. 2021, arXiv:2105.04165; the rule is that of verl's ``reward_score/geo3k.py``.
"""

from ppojob_trainer.rewards.math_verify import compare
from ppojob_trainer.rewards.records import Verdict, last_boxed, scored


def geometry3k(response: str, ground_truth: str, *, format_score: float = 0.1) -> Verdict:
    r"""Score ``format_score`` for the form, and the rest of 1 for the answer in the last box.

    The form is a response that begins with ``<think>...</think>`` and then has a box.

    Departs from verl, which compares by ``mathruler``: that library evaluates a response as Python.
    Here Math-Verify compares, which takes "0.5" for "1/2" and "2/4" where ``mathruler`` takes no
    fraction that is not reduced, and knows no words such as "degrees" and "million". The
    truth is LaTeX without a box.
    """
    answer = last_boxed(response)
    is_right = answer is not None and compare(f"\\boxed{{{answer}}}", ground_truth)[1]
    score = (1.0 - format_score) * is_right + format_score * in_form(response)
    return scored(score, answer and answer.strip(), is_right=is_right)


def in_form(response: str) -> bool:
    """Whether a response has the form, in linear time."""
    thought = response.find("</think>") if response.startswith("<think>") else -1
    box = response.find("\\boxed{", thought) if thought >= 0 else -1
    return box >= 0 and response.find("}", box) >= 0
