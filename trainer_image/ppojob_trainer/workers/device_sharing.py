"""Device sharing: the rollout engine and the models of a rank alternate on its device."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

import torch

from ppojob_trainer.parallel.offload import Resident


class DeviceSharing:
    """Moves a rank's engine and models off the device in turn, as far as they are to be offloaded.

    A model that keeps working stays on the device: the updates of a step load it once.
    """

    def __init__(self, sleep: Callable[[], None] = lambda: None) -> None:
        """`sleep` makes the engine release its memory; it may be called repeatedly."""
        self._sleep = sleep
        self._working: tuple[Resident, ...] = ()

    def of_models(self, *models: Resident) -> None:
        """Put the engine to sleep and offload all other models; these may compute."""
        self._sleep()
        self._others_leave(models)
        for model in models:
            model.load()
        self._working = models

    def of_engine(self) -> None:
        """Offload all models, so that the engine may wake."""
        self._others_leave(())
        torch.cuda.empty_cache()  # an engine's own allocator cannot use torch's cache

    @contextmanager
    def of_guest(self, model: Resident) -> Iterator[None]:
        """Offload other models while one computes, beside an engine that may be awake."""
        self._others_leave(())
        with model.on_device():
            yield

    def _others_leave(self, models: Collection[Resident]) -> None:
        for other in self._working:
            if other not in models:
                other.offload()
        self._working = ()
