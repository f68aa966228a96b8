"""Device sharing: the rollout engine and the models of a rank alternate on its device."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

import torch

from ppojob_trainer.parallel.offload import OffloadableWeights


class DeviceSharing:
    """Offloads a rank's engine and models while others compute, as far as the job asks for it.

    A model that is used again stays on the device, as in the updates of a step.
    """

    def __init__(self, sleep: Callable[[], None] = lambda: None) -> None:
        """`sleep` makes the engine release its memory; it is idempotent."""
        self._sleep = sleep
        self._loaded: tuple[OffloadableWeights, ...] = ()

    def use_models(self, *models: OffloadableWeights) -> None:
        """Put the engine to sleep, offload all other models, and load these."""
        self._sleep()
        self._offload_except(models)
        for model in models:
            model.load()
        self._loaded = models

    def use_engine(self) -> None:
        """Offload all models, so that the engine can wake up."""
        self._offload_except(())
        torch.cuda.empty_cache()  # the engine's allocator cannot use torch's cache

    @contextmanager
    def lend_to(self, model: OffloadableWeights) -> Iterator[None]:
        """Load one model within the block, also while the engine is awake."""
        self._offload_except(())
        with model.on_device():
            yield

    def _offload_except(self, models: Collection[OffloadableWeights]) -> None:
        for other in self._loaded:
            if other not in models:
                other.offload()
        self._loaded = ()
