"""Built-in samplers of rows, and validation of any sampler's result.

A sampler is a pure function of the step, the seed and earlier scores.
"""

import inspect
import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from ppojob_api.problem import counted, printable
from ppojob_trainer.data.order import epoch_order, uniform_draws
from ppojob_trainer.errors import BadInput
from ppojob_trainer.json_value import Json

Columns: TypeAlias = Mapping[str, Any]
"""Data about the rows, by name: arrays of numbers, and lists of file cells."""
Sampler: TypeAlias = Callable[..., object]

SIGNATURE: Final = "(step, seed, count, rows, **arguments)"
STATE: Final = "state"
"""Argument for the previous state of a function, which then also returns the next state."""


def uncertain(
    step: int, seed: int, count: int, rows: Columns, *, epsilon: float = 0.05
) -> list[int]:
    """Draw rows weighted by the uncertainty of their score.

    Single-stream Policy Optimization (arXiv:2509.13232), its prioritized draws: the weight of a row
    of the value v is `sqrt(v (1 - v)) + epsilon`. The draw without replacement is that of
    Efraimidis and Spirakis (2006), https://doi.org/10.1016/j.ipl.2005.11.003: those with the
    smallest `-log(1 - u) / weight` of uniform numbers u.
    """
    value = rows["value"]
    weights = np.sqrt(value * (1.0 - value)) + epsilon
    if np.count_nonzero(weights > 0.0) < count:
        why = f"there are fewer than {counted(count, 'row')} with a weight above 0"
        raise BadInput(f"epsilon = {epsilon:g}", why, "a number above 0")
    with np.errstate(divide="ignore", invalid="ignore"):
        late = -np.log1p(-uniform_draws(len(value), seed, step)) / weights
    late[weights <= 0.0] = np.inf
    chosen: list[int] = np.argsort(late, kind="stable")[:count].tolist()
    return chosen


def nearest(
    step: int,
    seed: int,
    count: int,
    rows: Columns,
    *,
    target: float = 0.5,
    explore: float = 0.25,
    column: str = "value",
) -> list[int]:
    """Select the rows whose value is nearest to a target, and a random share of others.

    Ties are broken at random. The random share detects rows that are no longer too hard or easy.
    """
    if column not in rows:
        raise BadInput(f"column {column}", "there is no such column", ", ".join(rows))
    numbers = np.asarray(rows[column], dtype=np.float64)
    order = epoch_order(len(numbers), seed, step)
    near = order[np.argsort(np.abs(numbers - target)[order], kind="stable")]
    others = min(max(round(explore * count), 0), count)
    near = near[: count - others]
    rest = order[~np.isin(order, near)]
    chosen: list[int] = [*near.tolist(), *rest[:others].tolist()]
    return chosen


SAMPLERS: Final[Mapping[str, Sampler]] = {"nearest": nearest, "uncertain": uncertain}
"""Built-in samplers by name."""


def checked(name: str, function: Sampler, arguments: Mapping[str, Json]) -> Sampler:
    """Return the function if it can be called with these arguments."""
    if isinstance(function, type):
        raise BadInput(
            f"class {name}", "its objects could have state that no checkpoint has", "def"
        )
    try:
        signature = inspect.signature(function)
        own = (STATE,) if keeps_state(function) else ()
        if own and STATE in arguments:
            raise BadInput(
                f"arguments with {STATE}", "the function has this argument", "another name"
            )
        signature.bind(None, None, None, None, **dict.fromkeys([*own, *arguments]))
    except (TypeError, ValueError) as error:
        given = ", ".join(["step, seed, count, rows", *arguments])
        why = f"it cannot be called with {given}: {error}"
        raise BadInput(name, why, f"def {name}{SIGNATURE}") from None
    return function


def keeps_state(function: Sampler) -> bool:
    """Whether a function takes its previous state."""
    return STATE in inspect.signature(function).parameters


def read_answer(
    answer: Any, count: int, num_rows: int, *, has_state: bool
) -> tuple[list[int], Json]:
    """Read the rows that a function selected, and its next state; None without one."""
    state: Json = None
    if has_state:
        if not isinstance(answer, tuple) or len(answer) != 2:
            why = f"a function with {STATE} returns rows and the next {STATE}"
            raise BadInput(_typed(answer), why, f"(rows, {STATE})")
        answer, state = answer
    try:
        chosen = [operator.index(row) for row in answer]
    except TypeError as error:
        why = f"it is not a list of row numbers: {error}"
        raise BadInput(_typed(answer), why, "integers from 0") from None
    _check(chosen, count, num_rows)
    return chosen, state


def _check(chosen: Sequence[int], count: int, num_rows: int) -> None:
    """Refuse anything but `count` distinct rows."""
    if len(chosen) != count:
        why, allowed = f"the step draws {count}", "count rows"
        raise BadInput(counted(len(chosen), "row"), why, allowed)
    outside = next((row for row in chosen if not 0 <= row < num_rows), None)
    if outside is not None:
        raise BadInput(f"row {outside}", f"there are {num_rows}", f"0 to {num_rows - 1}")
    row, times = Counter(chosen).most_common(1)[0]
    if times > 1:
        why = "its responses would have the same seed and be identical"
        raise BadInput(f"row {row} {times} times", why, "each row once")


def _typed(answer: object) -> str:
    return f"{type(answer).__name__} {printable(repr(answer), 80)}"
