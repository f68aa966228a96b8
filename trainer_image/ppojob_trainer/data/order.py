"""In which order prompts are drawn: a pure function of (seed, epoch, cursor).

Files with weights each have their share of every batch, in an order of their own. A share is exact
but for one prompt. Each source is gone through in passes of its own, a small one with a large
weight more often; what would fill only a part of its share at the end of a pass is left out, so
that no batch holds a row twice. All of it is a function of the seed and of the number of the batch.
A curriculum is the same with one source.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from ppojob_api.problem import shown
from ppojob_trainer.data.problems import DataProblem

Rows = npt.NDArray[np.int64]


@lru_cache(maxsize=4)
def epoch_order(num_rows: int, *key: int) -> Rows:
    """Permutation of ``range(num_rows)`` that belongs to a key, such as (seed, epoch).

    Rows are sorted by raw 64-bit draws of Philox keyed with it. The stream of a bit generator is
    fixed for all time, which NumPy does not promise of ``permutation``.
    """
    draws = np.random.Philox(np.random.SeedSequence(list(key))).random_raw(num_rows)
    order = np.argsort(draws, kind="stable").astype(np.int64)
    order.setflags(write=False)
    return order


def uniform_draws(count: int, *key: int) -> npt.NDArray[np.float64]:
    """Numbers in [0, 1) that belong to a key, such as (seed, step); alike on every machine."""
    raw = np.random.Philox(np.random.SeedSequence(list(key))).random_raw(count)
    drawn = (raw >> np.uint64(11)).astype(np.float64)
    drawn *= 2.0**-53
    return drawn


class Passes:
    """Orders rows, pass after pass: shuffled, as they are, or by how hard they are.

    Args:
        seed: seed of the order.
        shuffle: False for the order of the files.
        difficulties: a number for each row, the smallest first; empty for no such order.
        descending: the largest first.
    """

    def __init__(
        self,
        seed: int,
        *,
        shuffle: bool = True,
        difficulties: Sequence[float] = (),
        descending: bool = False,
    ) -> None:
        self._seed = seed
        self._shuffle = shuffle
        numbers = np.array(difficulties, dtype=np.float64)
        self._numbers = -numbers if descending else numbers
        self._known: dict[int, tuple[tuple[int, ...], Rows]] = {}

    def order(self, first: int, num_rows: int, used: int, *key: int) -> Rows:
        """The rows of a pass.

        Args:
            first: the rows are ``range(first, first + num_rows)``.
            num_rows: how many there are.
            used: how many of them the pass draws. Those that it leaves out are chosen by the seed,
                also where the order is by difficulty.
            key: which pass it is.
        """
        asked = (num_rows, used, *key)
        last, order = self._known.get(first, ((), np.empty(0, np.int64)))
        if last != asked:
            order = first + self._pass(first, num_rows, used, key)
            self._known[first] = asked, order
        return order

    def _pass(self, first: int, num_rows: int, used: int, key: tuple[int, ...]) -> Rows:
        whole = epoch_order(num_rows, self._seed, *key) if self._shuffle else np.arange(num_rows)
        order = whole[:used]
        if not len(self._numbers):
            return order
        return order[np.argsort(self._numbers[first + order], kind="stable")]


@dataclass(frozen=True)
class Mixture:
    """The order of sources by weight.

    Attributes:
        rows: of each source; they are numbered one source after the other.
        batch: prompts of a batch.
        passes: orders the rows of one source, in one pass over it.
    """

    rows: tuple[int, ...]
    weights: tuple[float, ...]
    batch: int
    passes: Passes

    def drawn(self, epoch: int, begin: int) -> list[int]:
        """The batch that begins at a place of an epoch, which is as long as all rows together."""
        in_epoch = begin // self.batch
        number = epoch * self._batches + in_epoch
        here = slice(begin, begin + self.batch)
        parts = [
            iter(self._part(source, number, in_epoch).tolist()) for source in range(len(self.rows))
        ]
        return [next(parts[source]) for source in self._sources[here]]

    @cached_property
    def most(self) -> list[int]:
        """Prompts of each source in a batch, at most."""
        return [int(count) for count in self._counts.max(axis=0)]

    @property
    def _batches(self) -> int:
        return sum(self.rows) // self.batch

    @cached_property
    def _sources(self) -> Rows:
        """The source of each place of an epoch, spread as evenly as their shares allow."""
        places = self._batches * self.batch
        shares = np.array(self.weights) / sum(self.weights)
        edges = np.rint(np.cumsum(shares) * places).astype(np.int64)
        counts = np.diff(edges, prepend=0)
        when = [(np.arange(count) + 0.5) / count for count in counts]
        sources = np.repeat(np.arange(len(counts)), counts)
        return sources[np.argsort(np.concatenate(when), kind="stable")]

    @cached_property
    def _counts(self) -> Rows:
        """(batches of an epoch, sources) prompts of each source."""
        of_batch = self._sources.reshape(self._batches, self.batch)
        return np.stack([(of_batch == source).sum(axis=1) for source in range(len(self.rows))], 1)

    @cached_property
    def _before(self) -> Rows:
        """(batches of an epoch + 1, sources) prompts of each source before a batch."""
        return np.concatenate([np.zeros_like(self._counts[:1]), self._counts.cumsum(axis=0)])

    def _part(self, source: int, number: int, in_epoch: int) -> Rows:
        """The rows of a source in a batch."""
        count = int(self._counts[in_epoch, source])
        if count == 0:
            return np.empty(0, np.int64)
        batches_of_a_pass = self.rows[source] // self.most[source]
        pass_, in_pass = divmod(number, batches_of_a_pass)
        start = self._drawn_before(source, number - in_pass)
        end = self._drawn_before(source, number - in_pass + batches_of_a_pass)
        first = sum(self.rows[:source])
        # Sources are shuffled each by draws of its own: equal files are not in the same order.
        order = self.passes.order(first, self.rows[source], end - start, pass_, source + 1)
        begin = self._drawn_before(source, number) - start
        return order[begin : begin + count]

    def _drawn_before(self, source: int, number: int) -> int:
        """Prompts of a source in all batches before one, whatever the pass."""
        epoch, in_epoch = divmod(number, self._batches)
        return int(epoch * self._before[-1, source] + self._before[in_epoch, source])


def mixture_problems(
    paths: Sequence[str], rows: Sequence[int], weights: Sequence[float], batch: int
) -> list[DataProblem]:
    """Say which sources have too few rows, or too little weight, for their share of a batch."""
    if sum(rows) < batch:
        return []  # which is told of all files together
    most = Mixture(tuple(rows), tuple(weights), batch, Passes(0)).most
    found = []
    for position, (path, own, needed) in enumerate(zip(paths, rows, most, strict=True)):
        where = f"spec.data.train[{position}].weight"
        got = f"{shown(weights[position])} for {path}"
        if needed == 0:
            why = "no batch of an epoch would hold one of its rows"
            found.append(DataProblem(where, got, why, "a larger weight"))
        elif own < needed:
            why = f"{needed} of the {batch} prompts of a batch are its own, and it has {own} rows"
            allowed = "a smaller weight, more rows, or smaller batches"
            found.append(DataProblem(where, got, why, allowed))
    return found


class OrderState(TypedDict):
    """All there is to resume from: the same on any number of ranks, workers and files."""

    epoch: int
    cursor: int


class PromptOrder:
    """Draws batches of row numbers, epoch after epoch.

    The rows at the end of an epoch that fill no batch are left out, as verl's loader does
    (``drop_last=True``); another epoch leaves out others.

    Args:
        num_rows: rows of the data set.
        seed: of the order.
        shuffle: False for the order of the files.
        mixture: says the order instead, for batches of its size; None for one without weights and
            curriculum.
    """

    def __init__(
        self, num_rows: int, seed: int, *, shuffle: bool = True, mixture: Mixture | None = None
    ) -> None:
        self._num_rows = num_rows
        self._seed = seed
        self._shuffle = shuffle
        self._mixture = mixture
        self._epoch = 0
        self._cursor = 0

    @property
    def epoch(self) -> int:
        """Epoch of the batch drawn last, counted from 0."""
        return self._epoch

    def next_batch(self, size: int) -> list[int]:
        """Draw the next ``size`` row numbers, all of one epoch and therefore distinct."""
        assert 1 <= size <= self._num_rows, "a batch is drawn from the rows of one epoch"
        if self._cursor + size > self._num_rows:
            self._epoch += 1
            self._cursor = 0
        begin = self._cursor
        self._cursor += size
        if self._mixture is not None:
            assert size == self._mixture.batch, "a mixture has places for batches of one size"
            return self._mixture.drawn(self._epoch, begin)
        if not self._shuffle:
            return list(range(begin, self._cursor))
        order = epoch_order(self._num_rows, self._seed, self._epoch)
        return [int(row) for row in order[begin : self._cursor]]

    def state_dict(self) -> OrderState:
        """Where the order stands; JSON."""
        return {"epoch": self._epoch, "cursor": self._cursor}

    def load_state_dict(self, state: OrderState) -> None:
        """Go on from a state.

        Raises:
            ValueError: the state cannot be one of this data set.
        """
        epoch, cursor = state["epoch"], state["cursor"]
        if epoch < 0 or not 0 <= cursor <= self._num_rows:
            raise ValueError(
                f"data cursor: got epoch {epoch}, cursor {cursor}: not a place in a data set of "
                f"{self._num_rows} rows; a state saved with the same data"
            )
        self._epoch, self._cursor = epoch, cursor
