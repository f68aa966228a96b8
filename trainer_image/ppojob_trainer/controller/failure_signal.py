"""Whether the tools, users and programs of an agent work."""

from typing import Final

FAILED_SHARE: Final = 0.5


class FailureSignal:
    """Warns once of a step in which most calls of tools and users fail; it decides nothing."""

    def __init__(self) -> None:
        self._has_told = False

    def warning(self, step: int, failed_share: float) -> str | None:
        """The warning for a step, by the share of its calls and answers that failed."""
        if self._has_told or failed_share < FAILED_SHARE:
            return None
        self._has_told = True
        return (
            f"step {step}: got {failed_share:.0%} of the calls of tools, users and programs "
            "failed: rows are trained on without what these would have said; the logs of the "
            "tools pods say what each one raised"
        )
