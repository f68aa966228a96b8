"""Whether rewards tell the responses of a step apart."""

from typing import Final

SILENT_STEPS: Final = 3


class LearningSignal:
    """Warns of steps in which the responses to each prompt score the same; it decides nothing."""

    def __init__(self) -> None:
        self._steps = 0

    def warning(
        self, step: int, zero_signal_groups: float, scores: list[float] | None
    ) -> str | None:
        """The warning for a step; once for several of them in a row, since one may be chance.

        `zero_signal_groups` is the share of its prompts whose rows have no advantage. Without
        `scores` something else is learnt.
        """
        self._steps = self._steps + 1 if zero_signal_groups == 1.0 else 0
        if self._steps != SILENT_STEPS:
            return None
        why = "are alike in what is learnt in the place of scores"
        remedy = "more samples a prompt, or a higher rollout.temperature"
        if scores is not None:
            least, most = min(scores), max(scores)
            told = f"{least:g}" if least == most else f"{least:g} to {most:g}"
            why = f"score the same (here {told})"
            remedy = "easier prompts, more samples a prompt, or a reward that tells responses apart"
        return (
            f"step {step}: got no learning signal for {SILENT_STEPS} steps: the responses to each "
            f"prompt {why}, so no advantage is other than 0; {remedy}"
        )
