r"""Mathematical equality of answers, by the library Math-Verify (Hugging Face, ``math-verify``)."""

import functools
import importlib
import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from ppojob_trainer.json_value import Json
from ppojob_trainer.rewards.records import Verdict, verdict

_SECONDS = 5.0


class _TooSlow(BaseException):
    """The answer cannot be computed in time; no ``except Exception`` of a library stops it."""


def math_verify(
    response: str, ground_truth: Json, *, score: float = 1.0, format_score: float = 0.0
) -> Verdict:
    r"""Score the answer that the library finds in the response: a box, LaTeX, or a number.

    The numbers are those of verl's ``reward_score/math_verify.py``. An answer whose equality takes
    more than 5 s of processor time (``9^{9^{9}}``) is a wrong one, as there. The truth has no box.
    """
    if not isinstance(ground_truth, str):
        raise TypeError(f"ground_truth: got {ground_truth!r}: the answer as text")
    prediction, is_right = compare(response, ground_truth)
    return verdict(prediction, is_right=is_right, score=score, format_score=format_score)


def compare(response: str, ground_truth: str) -> tuple[str | None, bool]:
    """Return the answer in a response, None where there is none, and whether it is the truth."""
    read_answer, read_truth, verify = load()
    prediction = None
    try:
        with _at_most(_SECONDS):
            found = read_answer(response)
            # The value, and the text that it was read from.
            prediction = str(found[-1]) if found else None
            is_right = verify(read_truth(f"\\boxed{{{ground_truth}}}"), found)
    except _TooSlow:
        is_right = False
    return prediction, is_right


@functools.cache
def load() -> tuple[
    Callable[[str], list[object]],
    Callable[[str], list[object]],
    Callable[[list[object], list[object]], bool],
]:
    """Import the library, which takes a second; answers its readers and its comparison."""
    library = importlib.import_module("math_verify")
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that we have own limits
    latex, number = library.LatexExtractionConfig(), library.ExprExtractionConfig()

    def read(targets: tuple[object, ...], text: str) -> list[object]:
        found: list[object] = library.parse(text, targets, parsing_timeout=None)
        return found

    def verify(truth: list[object], found: list[object]) -> bool:
        return bool(library.verify(truth, found, timeout_seconds=None))

    return functools.partial(read, (number, latex)), functools.partial(read, (latex,)), verify


@contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """End the block after a time of the processor, so that a busy machine changes no score.

    Reward functions run in the main thread of their process.
    """

    def end(_number: int, _frame: FrameType | None) -> None:
        raise _TooSlow

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, seconds, 1.0)  # again, should something swallow it
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
