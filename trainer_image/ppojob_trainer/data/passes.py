"""The order of rows in one pass over them: a pure function of the seed and the pass."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

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
