"""Step timer: durations of the stages of a step."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass


class StepTimer:
    """Times the stages of one step, which begins on construction.

    Stages must not nest; times of a repeated stage add up. `on_stage` is called at each start.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        *,
        on_stage: Callable[[str], None] | None = None,
    ) -> None:
        self._clock = clock
        self._on_stage = on_stage
        self._began = clock()
        self._running: str | None = None
        self._seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Time a stage, reported as ``timing_s/<stage>``."""
        assert self._running is None, f"stage {stage} begins inside {self._running}"
        self._running = stage
        began = self._clock()
        if self._on_stage is not None:
            self._on_stage(stage)
        try:
            yield
        finally:
            self._seconds[stage] = self._seconds.get(stage, 0.0) + self._clock() - began
            self._running = None

    def finish(self) -> "StepTimes":
        assert self._running is None, f"stage {self._running} still runs"
        return StepTimes(dict(self._seconds), self._clock() - self._began)


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The times of a finished step."""

    stages: Mapping[str, float]
    step_seconds: float

    @property
    def unaccounted_seconds(self) -> float:
        """Return the time outside of the stages."""
        return max(0.0, self.step_seconds - sum(self.stages.values()))

    def metrics(self) -> dict[str, float]:
        """Return ``timing_s/<stage>``, of the step, of the unaccounted rest, and its share."""
        share = self.unaccounted_seconds / self.step_seconds if self.step_seconds else 0.0
        return {
            **{f"timing_s/{stage}": seconds for stage, seconds in self.stages.items()},
            "timing_s/step": self.step_seconds,
            "timing_s/unaccounted": self.unaccounted_seconds,
            "perf/unaccounted_share": share,
        }
