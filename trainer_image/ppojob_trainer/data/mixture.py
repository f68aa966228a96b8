"""Sources that each have their share of every batch, in an order of their own.

A share is exact but for one prompt. Each source is gone through in passes of its own, a small one
with a large weight more often; what would fill only a part of its share at the end of a pass is
left out, so that no batch holds a row twice. All of it is a function of the seed and of the number
of the batch. A curriculum is the same with one source.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ppojob_api.problem import shown
from ppojob_trainer.data.passes import Passes, Rows
from ppojob_trainer.data.problems import DataProblem


@dataclass(frozen=True)
class Mixture:
    """The order of sources by weight.

    Attributes:
        rows: of each source; they are numbered one source after the other.
        weights: of each source.
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
