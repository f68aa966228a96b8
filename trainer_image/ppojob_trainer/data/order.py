"""Prompt order: a pure function of (seed, epoch, cursor).

Files with weights are sources, each with its share of every batch (to less than two prompts) and
its own order. A source has epochs of its own: a small one with a large weight is repeated more
often. At the end of a pass, rows that do not fill a share are dropped, so no batch holds a row
twice. Everything is a function of the seed and the batch number. A curriculum has one source.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from heapq import heappop, heappush
from math import ceil
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ppojob_api.problem import counted, shown
from ppojob_trainer.data.problems import DataProblem

Rows = npt.NDArray[np.int64]


@lru_cache(maxsize=4)
def epoch_order(num_rows: int, *key: int) -> Rows:
    """Return the permutation of ``range(num_rows)`` for a key, such as (seed, epoch).

    Rows are sorted by raw 64-bit draws of Philox keyed with it. The stream of a bit generator is
    fixed for all time, which NumPy does not promise of ``permutation``.
    """
    draws = np.random.Philox(np.random.SeedSequence(list(key))).random_raw(num_rows)
    order = np.argsort(draws, kind="stable").astype(np.int64)
    order.setflags(write=False)
    return order


def uniform_draws(count: int, *key: int) -> npt.NDArray[np.float64]:
    """Return (count,) uniform numbers in [0, 1) for a key, such as (seed, step)."""
    raw = np.random.Philox(np.random.SeedSequence(list(key))).random_raw(count)
    drawn = (raw >> np.uint64(11)).astype(np.float64)
    drawn *= 2.0**-53
    return drawn


def spread(counts: Sequence[int]) -> Rows:
    """Interleave sources by count, each less than one place off its share.

    The chairman assignment of Tijdeman (1980), https://doi.org/10.1016/0012-365X(80)90269-1: of the
    first n places a source with share w has w * n, up to 1 - 1 / (2m - 2), with m sources. Among
    the sources whose next item has reached its earliest place, that with the earliest latest place
    is next.
    """
    places, early = sum(counts), 1 / max(2 * sum(count > 0 for count in counts) - 2, 1)
    waiting = [(0, source, 0) for source, count in enumerate(counts) if count]
    ready: list[tuple[float, int, int]] = []
    sequence = np.empty(places, np.int64)
    for place in range(places):
        while waiting and waiting[0][0] <= place:
            _, source, drawn = heappop(waiting)
            heappush(ready, ((drawn + 1 - early) / counts[source], source, drawn))
        _, source, drawn = heappop(ready)
        sequence[place] = source
        if drawn + 1 < counts[source]:
            begins = ceil((drawn + 1 + early) * places / counts[source]) - 1
            heappush(waiting, (begins, source, drawn + 1))
    return sequence


@dataclass(frozen=True)
class Mixture:
    """The order of sources by weight; rows are numbered one source after the other."""

    rows: tuple[int, ...]  # number of rows of each source
    weights: tuple[float, ...]
    batch: int
    seed: int = 0
    shuffle: bool = True  # False for the order of the files
    # (rows,) numbers by which the rows of a pass are sorted; empty for no sorting.
    difficulties: Sequence[float] = ()
    descending: bool = False
    _passes: dict[int, tuple[tuple[int, ...], Rows]] = field(
        default_factory=dict, init=False, compare=False
    )
    """The last computed pass of each source."""

    def drawn(self, epoch: int, begin: int) -> list[int]:
        """Return the batch at a position of an epoch, whose length is that of all rows."""
        in_epoch = begin // self.batch
        number = epoch * self._batches + in_epoch
        parts = [
            iter(self._part(source, number, in_epoch).tolist()) for source in range(len(self.rows))
        ]
        return [next(parts[source]) for source in self._sources[begin : begin + self.batch]]

    @cached_property
    def most(self) -> list[int]:
        """Return (sources,) the largest number of prompts of each source in a batch."""
        return [int(count) for count in self._counts.max(axis=0)]

    @property
    def _batches(self) -> int:
        return sum(self.rows) // self.batch

    @cached_property
    def _sources(self) -> Rows:
        """Return (prompts of an epoch,) the source of each, evenly interleaved."""
        places = self._batches * self.batch
        shares = np.array(self.weights) / sum(self.weights)
        edges = np.rint(np.cumsum(shares) * places).astype(np.int64)
        return spread(np.diff(edges, prepend=0).tolist())

    @cached_property
    def _counts(self) -> Rows:
        """Return (batches of an epoch, sources) prompts of each source."""
        of_batch = self._sources.reshape(self._batches, self.batch)
        return np.stack([(of_batch == source).sum(axis=1) for source in range(len(self.rows))], 1)

    @cached_property
    def _before(self) -> Rows:
        """Return (batches of an epoch + 1, sources) prompts of each source before a batch."""
        return np.concatenate([np.zeros_like(self._counts[:1]), self._counts.cumsum(axis=0)])

    def _part(self, source: int, number: int, in_epoch: int) -> Rows:
        count = int(self._counts[in_epoch, source])
        if count == 0:
            return np.empty(0, np.int64)
        batches_of_a_pass = self.rows[source] // self.most[source]
        pass_, in_pass = divmod(number, batches_of_a_pass)
        start = self._drawn_before(source, number - in_pass)
        end = self._drawn_before(source, number - in_pass + batches_of_a_pass)
        begin = self._drawn_before(source, number) - start
        return self._pass(source, pass_, end - start)[begin : begin + count]

    def _pass(self, source: int, number: int, used: int) -> Rows:
        """Return the rows of a source that a pass uses, in order.

        The seed selects the dropped rows, also if rows are sorted by difficulty.
        """
        last, order = self._passes.get(source, ((), np.empty(0, np.int64)))
        if last != (number, used):
            count = self.rows[source]
            # Each source has its own key: equal files are in different orders.
            draws = epoch_order(count, self.seed, number, source + 1) if self.shuffle else None
            chosen = np.arange(count)[:used] if draws is None else draws[:used]
            order = sum(self.rows[:source]) + chosen
            if len(self.difficulties):
                numbers = np.array(self.difficulties, dtype=np.float64)[order]
                order = order[np.argsort(-numbers if self.descending else numbers, kind="stable")]
            self._passes[source] = (number, used), order
        return order

    def _drawn_before(self, source: int, number: int) -> int:
        """Return the number of prompts of a source in all batches before one."""
        epoch, in_epoch = divmod(number, self._batches)
        return int(epoch * self._before[-1, source] + self._before[in_epoch, source])


def mixture_problems(
    paths: Sequence[str],
    rows: Sequence[int],
    weights: Sequence[float],
    batch: int,
    *,
    field: str = "spec.data.train",
) -> list[DataProblem]:
    """Return the problems of files of a field with too few rows, or too little weight."""
    if sum(rows) < batch:
        return []  # reported for all files together
    most = Mixture(tuple(rows), tuple(weights), batch).most
    found = []
    for position, (path, own, needed) in enumerate(zip(paths, rows, most, strict=True)):
        where = f"{field}[{position}].weight"
        got = f"{shown(weights[position])} for {path}"
        if needed == 0:
            why = "no batch of an epoch would hold one of its rows"
            found.append(DataProblem(where, got, why, "a larger weight"))
        elif own < needed:
            has = counted(own, "row")
            why = f"{needed} of the {batch} prompts of a batch come from it, and it has {has}"
            allowed = "a smaller weight, more rows, or smaller batches"
            found.append(DataProblem(where, got, why, allowed))
    return found


Place: TypeAlias = tuple[int, int]
"""Data cursor: an epoch, from 0, and the number of its rows drawn so far."""


class PromptOrder:
    """Draws batches of row numbers, epoch after epoch.

    Rows at the end of an epoch that do not fill a batch are dropped, as in verl's loader
    (``drop_last=True``); another epoch drops others. With `mixture`, the order has weights or a
    curriculum, and batches have its size. `place` is the position of the next batch.
    """

    def __init__(
        self, num_rows: int, seed: int, *, shuffle: bool = True, mixture: Mixture | None = None
    ) -> None:
        self._num_rows = num_rows
        self._seed = seed
        self._shuffle = shuffle
        self._mixture = mixture
        self.place: Place = 0, 0

    def next_batch(self, size: int) -> list[int]:
        """Draw the next ``size`` row numbers, all of one epoch and therefore distinct."""
        assert 1 <= size <= self._num_rows, "a batch is drawn from the rows of one epoch"
        epoch, begin = self.place
        if begin + size > self._num_rows:
            epoch, begin = epoch + 1, 0
        self.place = epoch, begin + size
        if self._mixture is not None:
            assert size == self._mixture.batch, "a mixture has places for batches of one size"
            return self._mixture.drawn(epoch, begin)
        if not self._shuffle:
            return list(range(begin, begin + size))
        order = epoch_order(self._num_rows, self._seed, epoch)
        return [int(row) for row in order[begin : begin + size]]

    def batches_behind(self, place: Place, size: int, count: int) -> list[list[int]]:
        """Return the next `count` batches after another place, without drawing them."""
        here, self.place = self.place, place
        batches = [self.next_batch(size) for _ in range(count)]
        self.place = here
        return batches

    def batches_read(self, place: Place, size: int) -> int:
        """Return the number of batches before a place, if all have this size."""
        epoch, cursor = place
        assert cursor % size == 0, "a resumed job has the same batch size"
        return epoch * (self._num_rows // size) + cursor // size

    def passes_read(self, place: Place, size: int) -> int:
        """Return the number of complete epochs at a place, for batches of this size."""
        epoch, cursor = place
        return epoch + (cursor + size > self._num_rows)
