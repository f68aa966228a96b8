"""Tells of a job that learns nothing, since the responses to each prompt score the same."""

PATIENCE = 3
"""Steps in a row without signal; one may be chance."""


class LearningSignal:
    """Watches the steps of a job; it decides nothing."""

    def __init__(self) -> None:
        self._silent = 0

    def warning(self, step: int, zero_signal_groups: float, scores: list[float]) -> str | None:
        """What to tell of a step, once in a row of steps without signal.

        Args:
            step: number of the step.
            zero_signal_groups: share of its prompts whose rows have no advantage.
            scores: of its rows.
        """
        self._silent = self._silent + 1 if zero_signal_groups == 1.0 else 0
        if self._silent != PATIENCE:
            return None
        least, most = min(scores), max(scores)
        told = f"{least:g}" if least == most else f"{least:g} to {most:g}"
        return (
            f"step {step}: got no learning signal for {PATIENCE} steps: the responses to each "
            f"prompt score the same (here {told}), so no advantage is other than 0; easier "
            "prompts, more samples a prompt, or a reward that tells responses apart"
        )
