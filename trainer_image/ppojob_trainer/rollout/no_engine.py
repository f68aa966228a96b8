"""NoEngine: in place of an engine, in a job whose rows have all been generated before."""

from collections.abc import Iterable

from torch import Tensor

from ppojob_trainer.rollout.protocol import Finished, Request, RolloutError


class NoEngine:
    """Takes no memory, and no weights: those of the trainer are never put together for it."""

    def __init__(self) -> None:
        self._version = 0

    @property
    def policy_version(self) -> int:
        """See `RolloutEngine`."""
        return self._version

    def submit(self, request: Request) -> None:
        """Refuse: nobody has rows for it.

        Raises:
            RolloutError: always.
        """
        raise RolloutError(f"request {request.request_id!r}: this job generates nothing")

    def step(self) -> list[Finished]:
        """Nothing runs."""
        return []

    def has_work(self) -> bool:
        """Nothing to do."""
        return False

    def abort(self, request_id: str) -> None:
        """Unknown ids are ignored, and all are unknown."""

    def load_weights(self, version: int, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Take the version alone; all ranks leave `tensors` as they are."""
        self._version = version

    def reset_cache(self) -> None:
        """There is none."""

    def sleep(self) -> None:
        """It always does."""

    def close(self) -> None:
        """Nothing is open."""
