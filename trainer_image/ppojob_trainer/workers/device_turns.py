"""Who has a rank's device: the rollout engine, or the models that compute."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

import torch

from ppojob_trainer.parallel.offload import Resident


class DeviceTurns:
    """The turns of a rank's engine and models, of which those leave that are told to.

    A model that works on stays where it is: the updates of a step bring it once.
    """

    def __init__(self, sleep: Callable[[], None] = lambda: None) -> None:
        """`sleep` has the engine give its memory away; it is called again and again."""
        self._sleep = sleep
        self._working: tuple[Resident, ...] = ()

    def of_models(self, *models: Resident) -> None:
        """Have the engine sleep and other models leave; these may compute."""
        self._sleep()
        self._others_leave(models)
        for model in models:
            model.enter()
        self._working = models

    def of_engine(self) -> None:
        """Have all models leave, so that the engine may wake."""
        self._others_leave(())
        torch.cuda.empty_cache()  # what torch keeps, an engine with an allocator of its own lacks

    @contextmanager
    def of_guest(self, model: Resident) -> Iterator[None]:
        """Have other models leave while one computes, beside an engine that may be awake."""
        self._others_leave(())
        with model.at_work():
            yield

    def _others_leave(self, models: Collection[Resident]) -> None:
        for other in self._working:
            if other not in models:
                other.leave()
        self._working = ()
