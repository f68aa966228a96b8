"""Score history of data rows, step by step, for samplers."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class RowHistory(NamedTuple):
    """The score history of a row."""

    draws: int = 0  # number of steps that have drawn it
    last_step: int = 0
    responses: int = 0  # number of scored responses to it, over all steps
    total: float = 0.0
    last_score: float | None = None  # mean score in the last step with scores; None without


def after_step(
    seen: Mapping[str, RowHistory], step: int, drawn: Iterable[tuple[int, Sequence[float]]]
) -> dict[str, RowHistory]:
    """Return the histories after a step; `drawn` are its rows with the scores of responses."""
    found = dict(seen)
    for row, scores in drawn:
        known = found.get(str(row), RowHistory())
        total = sum(scores)
        found[str(row)] = RowHistory(
            draws=known.draws + 1,
            last_step=step,
            responses=known.responses + len(scores),
            total=known.total + total,
            last_score=total / len(scores) if scores else known.last_score,
        )
    return found


def columns(
    seen: Mapping[str, RowHistory], first: npt.NDArray[np.float64]
) -> dict[str, npt.NDArray[np.float64]]:
    """Return columns, (rows,) each, for a sampler; NaN for missing scores.

    `first` are the values of rows without a score, (rows,).
    """
    whole = {name: np.zeros(len(first)) for name in ("draws", "last_step", "responses")}
    scores = {name: np.full(len(first), np.nan) for name in ("mean_score", "last_score")}
    found = {**whole, **scores, "value": first.copy()}
    for row, known in seen.items():
        at = int(row)
        found["draws"][at], found["last_step"][at] = known.draws, known.last_step
        found["responses"][at] = known.responses
        if known.last_score is not None:
            found["mean_score"][at] = known.total / known.responses
            found["last_score"][at] = known.last_score
            found["value"][at] = min(max(known.last_score, 0.0), 1.0)
    return found
