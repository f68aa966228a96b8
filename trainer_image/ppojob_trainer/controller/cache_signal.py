"""Whether engines have room for the rows that run."""

from collections.abc import Mapping
from typing import Final

PREEMPTIONS_A_ROW: Final = 0.5


class CacheSignal:
    """Warns once of rows that are computed again for want of room; it decides nothing."""

    def __init__(self) -> None:
        self._has_told = False

    def warning(self, step: int, counts: Mapping[str, int]) -> str | None:
        """The warning for a step, by what its engines have counted (`RolloutEngine.counts`)."""
        rate = counts.get("preempted", 0) / max(1, counts.get("rows", 0))
        if self._has_told or rate < PREEMPTIONS_A_ROW:
            return None
        self._has_told = True
        return (
            f"step {step}: got {rate:.1f} preemptions a row: vLLM's cache has no room for the rows "
            "that run, so it computes some again; a larger rollout.kvCacheGib or gpuMemoryShare, "
            "or a smaller rollout.maxSequences"
        )
