import itertools
import math
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppojob_api.v1alpha1.algorithm import AlgorithmSpec, DynamicSamplingSpec
from ppojob_trainer.controller.batch import Batch
from ppojob_trainer.controller.batch_source import (
    DynamicSampling,
    choose,
    chosen_batch,
    has_signal,
    sampling_metrics,
)
from ppojob_trainer.controller.lookahead import InterleavedSource
from ppojob_trainer.data.prompt_store import PromptRow
from ppojob_trainer.errors import RewardFailed
from ppojob_trainer.metrics.timer import StepTimer
from ppojob_trainer.rows.row_metadata import RowMetadata
from ppojob_trainer.rpc.messages.scoring import RowScore


def signals_of(text: str) -> list[list[bool]]:
    """`+..+ ..+.`: rounds of prompts, `+` for one whose responses differ."""
    return [[sign == "+" for sign in round_] for round_ in text.split()]


@pytest.mark.parametrize(
    ("rounds", "size", "chosen"),
    [
        ("++++", 4, "00 01 02 03"),
        ("+.+. .++.", 4, "00 02 11 12"),
        # One more than there is room for: the last of them is left.
        ("+.++ .++.", 4, "00 02 03 11"),
        # The rounds are used up: the first of the others, in the order in which they were drawn.
        (".+.. ..+.", 4, "00 01 02 12"),
        ("....", 2, "00 01"),
        # Rounds that are larger or smaller than the batch.
        ("..+..+.+", 2, "02 05"),
        ("+. .. .+ +.", 3, "00 21 30"),
    ],
)
def test_the_first_prompts_with_signal_are_chosen_then_the_first_of_the_others(
    rounds, size, chosen
):
    places = [f"{round_}{position}" for round_, position in choose(signals_of(rounds), size)]
    assert " ".join(places) == chosen


@given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(1, 8))
def test_metrics_account_for_every_prompt_that_was_answered(flat, width):
    signals = [flat[first : first + width] for first in range(0, len(flat), width)]
    size = min(len(flat), 5)
    told = sampling_metrics(signals, size)
    left_out = (
        told["training/filter_groups/evicted_samples"]
        + told["training/filter_groups/discarded_surplus_samples"]
    )
    assert left_out == len(flat) - size
    assert told["training/filter_groups/wasted_share"] == pytest.approx(left_out / len(flat))
    assert told["train/num_gen_batches"] == math.ceil(len(flat) / width)


@pytest.mark.parametrize(
    ("numbers", "samples", "dropped", "signals"),
    [
        # The standard deviation of the first three is not 0 in floating point.
        ([0.1, 0.1, 0.1, 0.1, 0.1, 0.3], 3, [], [False, True]),
        ([1.0, 1.0], 1, [], [False, False]),
        # A dropped response has a score of 0, which nobody gave.
        ([1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0], 3, [2, 4, 6, 7, 8], [False, True, False]),
    ],
)
def test_responses_that_score_the_same_are_no_signal(numbers, samples, dropped, signals):
    assert has_signal(numbers, samples, dropped) == signals


@pytest.mark.parametrize(
    ("bounds", "signals"),
    [
        ({}, [True, True, True, False]),
        # Bounds are no part of what lies between them.
        ({"mean_above": 0.25}, [False, True, True, False]),
        ({"mean_below": 0.75}, [True, True, False, False]),
        ({"mean_above": 0.25, "mean_below": 0.75}, [False, True, False, False]),
    ],
)
def test_groups_are_replaced_whose_mean_is_out_of_bounds(bounds, signals):
    means = DynamicSamplingSpec(**bounds).means
    groups = [[0.0, 0.5], [0.0, 1.0], [0.5, 1.0], [0.5, 0.5]]
    numbers = [number for group in groups for number in group]
    assert has_signal(numbers, 2, [], means) == signals


def test_groups_are_replaced_of_which_a_response_was_cut_off() -> None:
    cut = [False, False, False, True, True, False]
    assert has_signal([0.0, 1.0] * 3, 2, cut=cut) == [True, False, False]
    # One that is not trained on may be cut off.
    cut = [False, False, True, False, True, False]
    assert has_signal([0.0, 1.0, 2.0] * 2, 3, [2], cut=cut) == [True, False]


def test_dynamic_sampling_hands_its_bounds_on() -> None:
    """Of two rounds of a prompt each, the first is too easy."""
    settings = DynamicSamplingSpec(prompts_per_round=1, max_rounds=2, mean_below=0.75)
    algorithm = AlgorithmSpec(type="grpo", prompts_per_step=1, samples_per_prompt=2)
    stages, numbers = Rounds([1.0, 0.5], [1.0, 0.0]), itertools.count()
    rows = sampling_of(stages, algorithm, settings, drops=False).rows(
        1, lambda count: [prompt(next(numbers))], StepTimer()
    )
    assert [one.index for one in rows.batch.prompts] == [1]


def sampling_of(
    stages: Any, algorithm: AlgorithmSpec, settings: DynamicSamplingSpec, *, drops: bool
) -> DynamicSampling:
    order: Any = SimpleNamespace(place=(0, 0), batches_behind=lambda *_: [])
    algorithm = algorithm.model_copy(update={"dynamic_sampling": settings})
    source = InterleavedSource(stages, algorithm, 0, 1, None, dataset=stages, order=order)
    return DynamicSampling(source, settings, drops)


def prompt(index: int) -> PromptRow:
    return PromptRow(
        index=index,
        prompt=f"prompt {index}",
        token_ids=(1,) * (index + 1),
        data_source="mine",
        ground_truth=None,
        extra_info={},
    )


def test_rows_stay_with_those_who_made_them():
    rounds = [
        Batch(
            purpose="train",
            step=1,
            prompts=[prompt(4 * number + position) for position in range(4)],
            samples=2,
            owners=2,
            round=number,
            metadata=[RowMetadata(100 * number + row, row == 3) for row in range(8)],
            scores=[float(row) for row in range(8)],
            extras=[b"%d" % row for row in range(8)],
        )
        for number in range(2)
    ]
    batch = chosen_batch(rounds, [(0, 1), (0, 3), (1, 1)])
    assert [one.index for one in batch.prompts] == [1, 3, 5]
    assert batch.lengths == [2, 3, 6, 7, 102, 103]
    assert batch.truncated == [False, True, False, False, False, True]
    assert batch.scores == [2.0, 3.0, 6.0, 7.0, 2.0, 3.0]
    assert batch.extras == [b"2", b"3", b"6", b"7", b"2", b"3"]
    assert batch.index.owners == (0, 1, 0)
    assert batch.index.prompt_lengths == (2, 4, 6)


def scored(*extras: dict[str, object]) -> Batch:
    """A batch of a prompt, whose responses have these numbers beside their scores."""
    batch = Batch("train", 1, [prompt(0)], len(extras), owners=1)
    batch.set_scores(
        [RowScore(row, 0.5 * row, msgspec.json.encode(one)) for row, one in enumerate(extras)]
    )
    return batch


def test_a_failed_call_counts_as_what_it_may_count_as():
    alone = scored({"safe": 0.75, "failed": 0.0}, {"acc": 0.5, "failed": 1.0})
    assert alone.numbers("safe", "where") == [0.75, 0.5]
    several = scored(
        {"a/safe": 0.75, "a/failed": 0.0, "a/score": 1.0}, {"a/failed": 1.0, "a/score": -1.0}
    )
    assert several.numbers("a/safe", "where") == [0.75, -1.0]
    with pytest.raises(RewardFailed, match='where: got "save": row 0 of step 1 has no such number'):
        alone.numbers("save", "where")


class Rounds:
    """Stages whose scores are given; None is a response at which the function failed."""

    roles = SimpleNamespace(owner=SimpleNamespace(ranks=(0,)))

    def __init__(self, *scores: list[float | None]) -> None:
        self.scores = scores
        self.kept: list[int] = []

    def generate(self, batch: Batch, *_: object, ahead: object) -> None:
        batch.metadata = [RowMetadata(1, is_truncated=False)] * batch.num_rows

    def score(self, batch: Batch) -> None:
        given = self.scores[batch.round]
        batch.scores = [score or 0.0 for score in given]
        batch.extras = [msgspec.json.encode({"dropped": float(one is None)}) for one in given]

    def record(self, batch: Batch) -> None:
        self.kept.append(batch.round)


def test_failures_make_no_signal_and_fill_a_batch_last():
    """Batches of two prompts, out of rounds of two prompts with two responses."""
    settings = DynamicSamplingSpec(metric="score", prompts_per_round=2, max_rounds=2)
    algorithm = AlgorithmSpec(type="grpo", prompts_per_step=2, samples_per_prompt=2)

    def chosen(stages: Rounds) -> list[int]:
        numbers = itertools.count()
        rows = sampling_of(stages, algorithm, settings, drops=True).rows(
            1, lambda count: [prompt(next(numbers)) for _ in range(count)], StepTimer()
        )
        return [one.index for one in rows.batch.prompts]

    assert chosen(Rounds([1.0, None, None, None], [1.0, 0.0, 1.0, 1.0])) == [0, 2]
    assert chosen(Rounds([None, None, 1.0, 1.0], [0.0, None, 2.0, 2.0])) == [1, 2]
    without_any = Rounds([1.0, 1.0, 0.0, 0.0], [None] * 4)
    with pytest.raises(RewardFailed, match="drop for all 4 responses of step 1"):
        chosen(without_any)
    assert without_any.kept == [0]
