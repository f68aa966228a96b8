"""Generation progress: polls engines for finished rows during a rollout."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from ppojob_trainer.rpc.client import Call, Caller, Peer, Pending
from ppojob_trainer.rpc.messages.rollout import AskRowsDrawn, RowsDrawn
from ppojob_trainer.rpc.methods import ROWS_DRAWN


@dataclass
class RolloutProgressPoll:
    """Polls engines and reports the sum; a slow answer delays nothing.

    Attributes:
        engines: one rank of each engine.
        tell: callback with the number of finished rows, and of all rows.
        leaves: whether the rows are given up; then it polls at once, and again and again.
    """

    caller: Caller
    engines: Sequence[Peer]
    tell: Callable[[int, int], None]
    leaves: Callable[[], bool] = lambda: False
    every_seconds: float = 2.0
    _asked: Pending[RowsDrawn] | None = field(default=None)
    _next: float = field(default=0.0)

    @contextmanager
    def asked(self) -> Iterator[Callable[[], None]]:
        """Yield a function to call repeatedly while the block waits for rows."""
        self._next = time.monotonic() + self.every_seconds
        try:
            yield self._look
        finally:
            if self._asked is not None:
                self.caller.give_up(self._asked)
                self._asked = None

    def _look(self) -> None:
        if self._asked is None:
            leaves = self.leaves()
            if leaves or time.monotonic() >= self._next:
                question = AskRowsDrawn(leaves)
                calls = [Call(rank, ROWS_DRAWN, question) for rank in self.engines]
                self._asked = self.caller.start(calls)
        elif self._asked.is_done:
            done, self._asked = self._asked, None
            self._next = time.monotonic() + self.every_seconds
            if done.refusal is None:  # whoever watches the ranks reports a refusal
                told = done.answers
                self.tell(sum(one.ended for one in told), sum(one.asked for one in told))
