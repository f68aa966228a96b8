"""Responses that are not trained on, where a reward function failed and says `onError: drop`.

They are as if they had not been drawn: no estimate, no loss, no signal and no mean of scores counts
them. What is refused for want of others is refused before the rows are kept: a job whose function
was mended scores them again.
"""

from collections.abc import Mapping

from ppojob_trainer.controller.batch import Batch
from ppojob_trainer.errors import RewardFailed
from ppojob_trainer.rewards.records import DROPPED, FAILED


def dropped_rows(batch: Batch, greedy: Batch | None, step: int) -> list[int]:
    """The rows that are not trained on: a reward failed there, or at what they are compared with.

    Args:
        batch: rows with their scores.
        greedy: greedy responses to the same prompts, with theirs; None where nobody reads those.
        step: of the batch.

    Raises:
        RewardFailed: no row would be left.
    """
    alone = {row for row, values in enumerate(batch.values()) if values.get(DROPPED)}
    compared = [] if greedy is None else greedy.values()
    unknown = {position for position, values in enumerate(compared) if values.get(DROPPED)}
    dropped = [
        row for row in range(batch.num_rows) if row in alone or row // batch.samples in unknown
    ]
    if len(dropped) == batch.num_rows:
        raise RewardFailed(
            "spec.rewards[].onError",
            f"got drop for all {batch.num_rows} responses of step {step}: nothing is left to train "
            "on; functions that score some of them",
        )
    return dropped


def values_of_failure(values: Mapping[str, float | str]) -> dict[str, float | str]:
    """What counts of a response that has no score: that it has none, and by which function."""
    told = (DROPPED, FAILED)
    return {name: value for name, value in values.items() if name.rpartition("/")[2] in told}
