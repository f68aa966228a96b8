r"""Mathematical equality of answers, by the library Math-Verify (Hugging Face, ``math-verify``)."""

import functools
import importlib
import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ppojob_trainer.rewards.records import Verdict, verdict

_SECONDS = 5.0


class _TooSlow(BaseException):
    """The comparison timed out; a BaseException, so that no library catches it."""


def math_verify(
    response: str, ground_truth: str, *, score: float = 1.0, format_score: float = 0.0
) -> Verdict:
    r"""Score the answer that the library finds in the response: a box, LaTeX, or a number.

    The numbers are those of verl's ``reward_score/math_verify.py``. As there, an answer whose
    comparison takes more than 5 s of processor time (``9^{9^{9}}``) is wrong. The truth has no box.
    """
    prediction, is_right = compare(response, ground_truth)
    return verdict(prediction, is_right=is_right, score=score, format_score=format_score)


def compare(response: str, ground_truth: str) -> tuple[str | None, bool]:
    """Return the answer in a response, None without one, and whether it equals the truth."""
    library = load()
    latex, number = library.LatexExtractionConfig(), library.ExprExtractionConfig()
    prediction = None
    try:
        with _at_most(_SECONDS):
            found = library.parse(response, (number, latex), parsing_timeout=None)
            # A list of the value and its text.
            prediction = str(found[-1]) if found else None
            truth = library.parse(f"\\boxed{{{ground_truth}}}", (latex,), parsing_timeout=None)
            is_right = bool(library.verify(truth, found, timeout_seconds=None))
    except _TooSlow:
        is_right = False
    return prediction, is_right


@functools.cache
def load() -> Any:
    """Import the library, which takes a second."""
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns of disabled timeouts
    return importlib.import_module("math_verify")


@contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """Limit the processor time of a block, so that a busy machine does not change a score.

    Signals require the main thread, in which reward functions run.
    """

    def end(_number: int, _frame: FrameType | None) -> None:
        raise _TooSlow

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, seconds, 1.0)  # repeated, in case it is caught
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
