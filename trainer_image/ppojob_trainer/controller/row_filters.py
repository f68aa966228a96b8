"""Row filters: responses that are excluded from training."""

from collections.abc import Collection
from typing import Final

from ppojob_api.v1alpha1.algorithm import GroupFilterSpec
from ppojob_trainer.controller.batch import Batch
from ppojob_trainer.errors import RewardFailed
from ppojob_trainer.rewards.records import DROPPED

METRIC: Final = "spec.algorithm.groupFilter.metric"
LENGTH: Final = "length"
SCORE_PER_TOKEN: Final = "score_per_token"


def dropped_rows(batch: Batch, greedy: Batch | None) -> list[int]:
    """Return the rows to exclude because a reward function failed (`onError: drop`).

    A row is dropped if its own reward failed, or that of the greedy response to its prompt. Call
    this before the rows are recorded: after the error (RewardFailed: no row is left) a job with a
    fixed function scores them again.
    """
    baselines = [{}] * len(batch.prompts) if greedy is None else greedy.values()
    dropped = [
        row
        for row, values in enumerate(batch.values())
        if values.get(DROPPED) or baselines[row // batch.samples].get(DROPPED)
    ]
    if len(dropped) == batch.num_rows:
        raise RewardFailed(
            "spec.rewards[].onError",
            f"got drop for all {batch.num_rows} responses of step {batch.step}: nothing is left to "
            "train on; functions that score some of them",
        )
    return dropped


def filtered_rows(
    batch: Batch, settings: GroupFilterSpec | None, dropped: Collection[int]
) -> list[int]:
    """Return the rows that the group filter excludes, in order, without `dropped` ones.

    GFPO (arXiv:2508.09726), algorithm 1: keeps the `keep` shortest responses of each prompt, or
    those with the largest value of another metric (RewardFailed if it is missing); of equal ones
    the first.
    """
    if settings is None:
        return []
    rank = _ranks(batch, settings.metric)
    kept: set[int] = set()
    for first in range(0, batch.num_rows, batch.samples):
        group = [row for row in range(first, first + batch.samples) if row not in dropped]
        kept.update(sorted(group, key=rank.__getitem__)[: settings.keep])
    return [row for row in range(batch.num_rows) if row not in kept and row not in dropped]


def _ranks(batch: Batch, metric: str) -> list[float]:
    """Return (rows,) the sort key; the smallest are kept."""
    if metric == LENGTH:
        return [float(length) for length in batch.lengths]
    if metric == SCORE_PER_TOKEN:
        pairs = zip(batch.scores, batch.lengths, strict=True)
        return [-score / max(1, length) for score, length in pairs]
    others = (LENGTH, SCORE_PER_TOKEN)
    return [-number for number in batch.numbers(metric, METRIC, others)]
