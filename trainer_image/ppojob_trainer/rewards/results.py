"""Validation of what reward functions return; readers raise `BadResult`."""

import math
from collections.abc import Mapping
from typing import Any

from ppojob_api.problem import printable

LARGEST_SCORE = 3.4028234663852886e38
"""Scores become float32: beyond its largest number they are infinite."""
_SHOWN_CHARACTERS = 80
_EXTRA_CHARACTERS = 1_024


class BadResult(Exception):  # noqa: N818  the result is bad
    """A reward function or a tool returned an invalid value.

    Attributes:
        reason_code: ``NonFiniteReward``, ``BadRewardResult`` or ``BadAnswer``.
        got: the value, in at most 80 characters.
    """

    def __init__(self, reason_code: str, got: str, why: str) -> None:
        self.reason_code, self.got, self.why = reason_code, got, why
        super().__init__(f"{reason_code}: got {got}: {why}")


def read_result(value: object) -> tuple[float, dict[str, float | str]]:
    """Read a number, or a mapping with a number under "score" and further named values.

    Numbers are booleans and scalars of Python, NumPy and CPU tensors. Values of None are ignored.
    """
    if not isinstance(value, Mapping):
        return read_number(value, "a number or a dict with a score"), {}
    if "score" not in value:
        keys = printable(", ".join(map(str, value)), _SHOWN_CHARACTERS) or "nothing"
        raise BadResult("BadRewardResult", shown(value), f'the dict has {keys} but no "score"')
    score = read_number(value["score"], '"score" is a number')
    extras: dict[str, float | str] = {}
    for key, extra in value.items():
        if key == "score" or extra is None:
            continue
        if not isinstance(key, str):
            raise BadResult("BadRewardResult", shown(key), "names of values are text")
        if isinstance(extra, str):
            extras[encodable(key)] = encodable(extra[:_EXTRA_CHARACTERS])
        else:
            extras[encodable(key)] = read_number(extra, f"{key!r} is a number or text")
    return score, extras


def read_results(value: Any, count: int) -> list[object]:
    """Read a list or a one-dimensional array with one result for each response."""
    listed = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(listed, list | tuple):
        why = f"not a list: a list of {count} numbers, or dicts with a score"
        raise BadResult("BadRewardResult", f"{type(value).__name__} {shown(value)}", why)
    if len(listed) != count:
        why = f"there are {count} responses: one score for each"
        raise BadResult("BadRewardResult", f"{len(listed)} scores {shown(value)}", why)
    return list(listed)


def shown(value: object) -> str:
    """Return a value's repr in one line of at most 80 characters, also if its repr raises."""
    try:
        text = repr(value)
    except Exception as error:  # users' objects
        text = f"<{type(value).__name__} whose repr raises {type(error).__name__}>"
    return printable(text, _SHOWN_CHARACTERS)


def encodable(value: str) -> str:
    """Escape the lone surrogates of a text, which UTF-8 cannot encode."""
    return value.encode(errors="backslashreplace").decode()


def read_number(value: object, wanted: str) -> float:
    """Return a number that is finite in float32; `wanted` is for the message."""
    number: Any = value
    if hasattr(value, "shape") and hasattr(value, "item"):
        if getattr(value, "is_cuda", False):
            raise BadResult("BadRewardResult", "a tensor on a GPU", "return result.item() instead")
        number = value.item() if tuple(value.shape) == () else value
    if isinstance(number, bool | int | float):
        try:
            as_float = float(number)
        except OverflowError:
            as_float = math.inf
        if math.isfinite(as_float) and abs(as_float) <= LARGEST_SCORE:
            return as_float
        raise BadResult("NonFiniteReward", shown(number), f"not finite in float32: {wanted}")
    raise BadResult(
        "BadRewardResult", f"{type(value).__name__} {shown(value)}", f"not a number: {wanted}"
    )
