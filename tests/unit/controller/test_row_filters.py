import msgspec
import pytest

from ppojob_api.v1alpha1.algorithm import GroupFilterSpec
from ppojob_trainer.controller.batch import Batch
from ppojob_trainer.controller.row_filters import dropped_rows, filtered_rows
from ppojob_trainer.data.prompt_store import PromptRow
from ppojob_trainer.errors import RewardFailed
from ppojob_trainer.rows.row_metadata import RowMetadata


def batch(prompts: int, samples: int, dropped: set[int]) -> Batch:
    rows = [PromptRow(number, (1,), "a", "b", "c", {}) for number in range(prompts)]
    made = Batch("train", 7, rows, samples, owners=1)
    made.extras = [
        msgspec.json.encode({"brevity": row % 3, "dropped": float(row in dropped)})
        for row in range(made.num_rows)
    ]
    return made


def test_rows_are_dropped_where_they_or_their_greedy_response_have_no_score() -> None:
    assert dropped_rows(batch(3, 2, {1, 4}), None) == [1, 4]
    assert dropped_rows(batch(3, 2, {1}), batch(3, 1, {2})) == [1, 4, 5]
    assert dropped_rows(batch(3, 2, set()), batch(3, 1, set())) == []
    with pytest.raises(RewardFailed, match="drop for all 6 responses of step 7"):
        dropped_rows(batch(3, 2, {0, 1, 2, 3}), batch(3, 1, {2}))


@pytest.mark.parametrize(
    ("metric", "kept"),
    [
        # Lengths 5 1 5 3, and 2 9 4 4; of two that are equal the first.
        ("length", {1, 3, 4, 6}),
        # Scores over these: 0.4 0 0.2 1/3, and -0.5 -1/9 0.25 0.25.
        ("score_per_token", {0, 3, 6, 7}),
        # 2 0 1 1, and -1 -1 1 1.
        ("score", {0, 2, 6, 7}),
        # 0 1 2 0, and 1 2 0 1.
        ("brevity", {1, 2, 4, 5}),
    ],
)
def test_of_a_group_the_best_by_a_metric_are_trained_on(metric, kept) -> None:
    made = batch(2, 4, set())
    made.metadata = [RowMetadata(n, is_truncated=False) for n in (5, 1, 5, 3, 2, 9, 4, 4)]
    made.scores = [2.0, 0.0, 1.0, 1.0, -1.0, -1.0, 1.0, 1.0]
    settings = GroupFilterSpec(keep=2, metric=metric)
    assert set(range(8)) - set(filtered_rows(made, settings, ())) == kept


def test_a_dropped_row_takes_no_place_among_those_that_are_kept() -> None:
    made = batch(2, 3, {0, 3, 4})
    made.metadata = [RowMetadata(n, is_truncated=False) for n in (1, 2, 3, 1, 2, 3)]
    settings = GroupFilterSpec(keep=1)
    assert filtered_rows(made, settings, [0, 3, 4]) == [2]


def test_a_metric_that_no_reward_function_gives_is_told() -> None:
    made = batch(1, 2, set())
    made.scores = [0.0, 1.0]
    with pytest.raises(RewardFailed) as refused:
        filtered_rows(made, GroupFilterSpec(keep=1, metric="acc"), ())
    assert str(refused.value).endswith(
        'got "acc": row 0 of step 7 has no such number; '
        "length or score_per_token or score or brevity or dropped"
    )
