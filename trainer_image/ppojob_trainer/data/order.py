"""In which order prompts are drawn: a pure function of (seed, epoch, cursor)."""

from typing import TypedDict

from ppojob_trainer.data.mixture import Mixture
from ppojob_trainer.data.passes import epoch_order


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
        seed: seed of the order.
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
