"""Validation metrics as in verl: mean@N, std@N, best@n, worst@n, maj@n.

Each prompt has N samples. The result of n of them (best, worst, majority vote) is estimated by 1000
bootstraps of n draws with replacement, seed 42, and averaged over prompts. The draws are numpy's
legacy stream and depend on N and n only, so the metrics equal verl's.
"""

import functools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from ppojob_trainer.metrics.step_metrics import RowFigures, Spread

NUM_BOOTSTRAPS: Final = 1000
SEED: Final = 42
CORE_VARIABLE: Final = "acc"
VOTE_VARIABLE: Final = "pred"

_COUNTED_AT_ONCE: Final = 2**18
_CORE_STATISTICS: Final = ("mean@", "best@", "maj@")


@dataclass(frozen=True, slots=True)
class ValidationRow:
    """One sample of a prompt."""

    data_source: str
    prompt_id: int
    score: float  # NaN without reward functions
    # further values of the reward function. Numbers are variables, among them ``acc``; the text
    # ``pred`` is the answer for the majority vote.
    extras: Mapping[str, float | str]
    figures: bytes | str | None = None  # `RowFigures` as JSON; empty for single-turn samples

    def variables(self) -> dict[str, float]:
        numbers = {
            name: float(value) for name, value in self.extras.items() if not isinstance(value, str)
        }
        return numbers if math.isnan(self.score) else {**numbers, "reward": self.score}


def validation_metrics(rows: Iterable[ValidationRow]) -> dict[str, float]:
    """Return the metrics ``val-core/<data source>/<variable>/<statistic>`` and ``val-aux/...``.

    Core are mean, best and maj of ``acc`` at the largest n. A variable is reported if every sample
    of its data source has it. The samples of a prompt must be in order. Multi-turn samples add
    ``val-aux/num_turns``.

    Departs from verl: ``acc`` exists for every data source, and ``mean@1`` (equal to mean@N) also
    for N > 1.
    """
    sources: dict[str, dict[int, list[ValidationRow]]] = defaultdict(lambda: defaultdict(list))
    turns = list[int]()
    for row in rows:
        sources[row.data_source][row.prompt_id].append(row)
        if row.figures:
            turns.append(msgspec.json.decode(row.figures, type=RowFigures).num_turns)
    found: dict[str, float] = {}
    for source, prompts in sources.items():
        for variable, statistics in _source_statistics(list(prompts.values())).items():
            largest = max(map(_samples_of, statistics))
            for statistic, value in statistics.items():
                is_core = variable == CORE_VARIABLE and statistic.startswith(_CORE_STATISTICS)
                is_core = is_core and _samples_of(statistic) in (largest, 1)
                found[f"val-{'core' if is_core else 'aux'}/{source}/{variable}/{statistic}"] = value
    of_turns = Spread.of(turns).named("val-aux/num_turns") if turns else {}
    return dict(sorted(found.items())) | of_turns


def prompt_statistics(
    values: Sequence[float], winners: Mapping[int, NDArray[np.int64]] | None
) -> dict[str, float]:
    """Return the statistics of one variable of a prompt's samples: (N,) values.

    These are ``mean@N``, ``mean@1``, and for N > 1 ``std@N`` (of the population) and, for n of 2,
    4, ... and N, ``best@n``, ``worst@n`` and ``maj@n`` with ``/mean`` and ``/std`` over bootstraps.
    `winners` come from `majority_samples`; without them there is no maj@n.
    """
    num_samples = len(values)
    array = np.asarray(values, dtype=np.float64)
    mean = float(array.mean())
    found = {f"mean@{num_samples}": mean, "mean@1": mean}
    if num_samples == 1:
        return found
    found[f"std@{num_samples}"] = float(array.std())
    for size in _subset_sizes(num_samples):
        drawn = _draws(num_samples, size)
        reduced = {"best": array[drawn].max(axis=1), "worst": array[drawn].min(axis=1)}
        if winners is not None:
            reduced["maj"] = array[winners[size]]
        for name, results in reduced.items():
            found[f"{name}@{size}/mean"] = float(results.mean())
            found[f"{name}@{size}/std"] = float(results.std())
    return found


def majority_samples(votes: Sequence[str]) -> dict[int, NDArray[np.int64]]:
    """Return n -> (1000,) a sample with the most common answer in each bootstrap.

    `votes` are the (N,) answers of a prompt. Of equally common answers, the one drawn first wins.
    """
    answers, codes = np.unique(np.asarray(votes), return_inverse=True)
    return {
        size: _majority(codes, len(answers), _draws(len(votes), size))
        for size in _subset_sizes(len(votes))
    }


def _source_statistics(prompts: list[list[ValidationRow]]) -> dict[str, dict[str, float]]:
    """Return variable -> statistic -> mean over prompts."""
    samples = [[row.variables() for row in rows] for rows in prompts]
    shared = set.intersection(*(set(variables) for rows in samples for variables in rows))
    has_votes = all(
        isinstance(row.extras.get(VOTE_VARIABLE), str) for rows in prompts for row in rows
    )
    gathered: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in shared}
    for rows, numbers in zip(prompts, samples, strict=True):
        votes = [str(row.extras[VOTE_VARIABLE]) for row in rows] if has_votes else None
        winners = None if votes is None else majority_samples(votes)
        for name, statistics in gathered.items():
            values = [variables[name] for variables in numbers]
            for statistic, value in prompt_statistics(values, winners).items():
                statistics[statistic].append(value)
    return {
        name: {statistic: float(np.mean(values)) for statistic, values in statistics.items()}
        for name, statistics in gathered.items()
    }


def _subset_sizes(num_samples: int) -> list[int]:
    """Return 2, 4, 8, ... below N, and N."""
    return [2**k for k in range(1, num_samples.bit_length()) if 2**k < num_samples] + [num_samples]


def _samples_of(statistic: str) -> int:
    return int(statistic.partition("@")[2].partition("/")[0])


@functools.lru_cache(maxsize=64)
def _draws(num_samples: int, size: int) -> NDArray[np.int64]:
    """Return (1000, size) sample indices, the same for every prompt, as in verl."""
    stream = np.random.RandomState(SEED)
    drawn: NDArray[np.int64] = stream.randint(0, num_samples, size=(NUM_BOOTSTRAPS, size))
    drawn.setflags(write=False)
    return drawn


def _majority(
    codes: NDArray[np.int64], answers: int, drawn: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return (bootstraps,) samples with the most common answer.

    `codes` are the (N,) answers as numbers below `answers`; `drawn` are (bootstraps, n) samples.
    """
    winners = []
    bootstraps = max(1, _COUNTED_AT_ONCE // max(answers, drawn.shape[1]))
    for first in range(0, len(drawn), bootstraps):
        block = drawn[first : first + bootstraps]
        rows = np.arange(len(block))
        cells = codes[block] + answers * rows[:, None]
        counts = np.bincount(cells.ravel(), minlength=answers * len(block))
        winners.append(block[rows, counts[cells].argmax(axis=1)])
    return np.concatenate(winners)
