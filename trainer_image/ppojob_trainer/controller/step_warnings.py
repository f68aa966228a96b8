"""Warnings about steps with little learning signal."""

from collections.abc import Mapping
from typing import Final

SILENT_STEPS: Final = 3
FAILED_SHARE: Final = 0.5
PREEMPTIONS_A_ROW: Final = 0.5


class StepWarnings:
    """Returns each warning once, when its cause first appears."""

    def __init__(self) -> None:
        self._last_signal: int | None = None  # last step with a learning signal
        self._reported: set[str] = set()

    def no_signal(
        self, step: int, zero_signal_groups: float, scores: list[float] | None
    ) -> str | None:
        """Warn if no prompt has responses of different scores for several steps.

        `zero_signal_groups` is the share of prompts without advantages; `scores` are None if the
        job does not learn from scores.
        """
        if zero_signal_groups != 1.0:
            self._last_signal = step
        elif self._last_signal is None:
            self._last_signal = step - 1
        # By step numbers: a repeated step counts once.
        if step - self._last_signal != SILENT_STEPS:
            return None
        why = "are alike in what is learnt in the place of scores"
        remedy = "more samples a prompt, or a higher rollout.temperature"
        if scores is not None:
            least, most = min(scores), max(scores)
            values = f"{least:g}" if least == most else f"{least:g} to {most:g}"
            why = f"score the same (here {values})"
            remedy = "easier prompts, more samples a prompt, or a reward that tells responses apart"
        return (
            f"step {step}: got no learning signal for {SILENT_STEPS} steps: the responses to each "
            f"prompt {why}, so no advantage is other than 0; {remedy}"
        )

    def failed_calls(self, step: int, failed_share: float, failed_rows: float = 0.0) -> str | None:
        """Warn if most calls of tools, user simulators and programs failed.

        `failed_rows` is the share of rows whose user or program failed: a failure may end its row,
        while other rows go on for many calls.
        """
        share = max(failed_share, failed_rows)
        if share < FAILED_SHARE or not self._is_new("failed_calls"):
            return None
        what = "calls of tools, users and programs failed"
        if failed_share < FAILED_SHARE:
            what = "rows in which a user or program failed"
        return (
            f"step {step}: got {share:.0%} of the {what}: rows are trained on without what "
            "these would have said; the logs of the tools pods say what each one raised"
        )

    def no_room(self, step: int, counts: Mapping[str, int]) -> str | None:
        """Warn if engines preempt rows for lack of memory (see `RolloutEngine.counts`)."""
        rate = counts.get("preempted", 0) / max(1, counts.get("rows", 0))
        if rate < PREEMPTIONS_A_ROW or not self._is_new("no_room"):
            return None
        return (
            f"step {step}: got {rate:.1f} preemptions a row: vLLM's cache has no room for the rows "
            "that run, so it computes some again; a larger rollout.kvCacheGib or gpuMemoryShare, "
            "or a smaller rollout.maxSequences"
        )

    def _is_new(self, cause: str) -> bool:
        is_new = cause not in self._reported
        self._reported.add(cause)
        return is_new
