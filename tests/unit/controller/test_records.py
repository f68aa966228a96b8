import math

import msgspec
import pyarrow.parquet as pq
import pytest

from ppojob_trainer.controller.batch import Batch, Origin, outcomes_of
from ppojob_trainer.controller.records import Records, step_rows
from ppojob_trainer.controller.training_step import StepResult
from ppojob_trainer.data.prompt_store import PromptRow
from ppojob_trainer.errors import RewardFailed
from ppojob_trainer.metrics.sinks import Sinks
from ppojob_trainer.metrics.step_metrics import Spread
from ppojob_trainer.rows.row_metadata import RowMetadata
from ppojob_trainer.rpc.messages.rollout import OF_DATA
from ppojob_trainer.rpc.messages.training import Advantaged

NONE = Spread(0.0, 0.0, 0.0)
ADVANTAGED = Advantaged(
    [0.5, 1.5, 2.5, 3.5], NONE, NONE, 0.0, [], [], row_advantages=[-1.0, 1.0, -0.25, 0.25]
)


def batch(prompts: int, samples: int, dropped: set[int]) -> Batch:
    rows = [PromptRow(10 * number, (1,), "a", "b", "c", {}) for number in range(prompts)]
    made = Batch("train", 12, rows, samples, owners=1)
    made.extras = [
        msgspec.json.encode({"acc": 0.0, "dropped": float(row in dropped)})
        for row in range(made.num_rows)
    ]
    return made


@pytest.mark.parametrize(
    ("origins", "places"),
    [
        (None, [(0, 0), (0, 1), (0, 2), (0, 3)]),
        # As in the files of their rounds.
        ([Origin(0, 3, owner=0), Origin(2, 1, owner=0)], [(0, 6), (0, 7), (2, 2), (2, 3)]),
    ],
)
def test_each_row_has_its_reward_and_its_advantage(origins, places, tmp_path):
    made = batch(2, 2, set())
    made.scores, made.origins = [1.0, 2.0, 3.0, 4.0], origins
    Records(Sinks(()), tmp_path).keep_advantages(StepResult(made, ADVANTAGED, {}))
    rows = pq.read_table(tmp_path / "advantages" / "step-000012.parquet").to_pylist()
    assert [(row.pop("round"), row.pop("row")) for row in rows] == places
    assert [list(row.values()) for row in rows] == [
        [12, 0, 0, 1.0, 0.5, -1.0],
        [12, 0, 1, 2.0, 1.5, 1.0],
        [12, 10, 0, 3.0, 2.5, -0.25],
        [12, 10, 1, 4.0, 3.5, 0.25],
    ]


def test_a_process_reward_model_learns_shares_of_right_of_rows_that_are_not_dropped() -> None:
    made = batch(2, 2, set())
    made.scores = [0.0, 1.0, 7.0, 0.25]
    assert outcomes_of(made, [2]) == pytest.approx([0.0, 1.0, math.nan, 0.25], nan_ok=True)
    with pytest.raises(RewardFailed, match="got 7 for row 2 of step 12"):
        outcomes_of(made, [])


def test_of_a_dropped_row_failures_count_alone() -> None:
    made = batch(3, 1, set())
    made.scores, made.metadata = [1.0, 0.0, 0.5], [RowMetadata(4, is_truncated=False)] * 3
    kept = {"acc": 1.0, "f/score": 1.0, "f/failed": 0.0, "dropped": 0.0}
    lost = {"acc": 0.0, "f/score": 0.0, "f/failed": 1.0, "pred": "0", "dropped": 1.0}
    made.extras = [msgspec.json.encode(values) for values in (kept, lost, kept)]
    result = StepResult(made, ADVANTAGED, {}, dropped=[1])
    assert result.scores == [1.0, 0.5]
    assert step_rows(result).extras == [kept, {"f/failed": 1.0, "dropped": 1.0}, kept]


def test_rows_that_ask_the_same_are_one_prompt() -> None:
    """As in files that hold each question many times: it is known by what it asks."""
    asked = [((5, 6), b""), ((5, 6), b""), ((5, 6), b"image"), ((56,), b"")]
    made = batch(len(asked), 1, set())
    made.prompts = [
        PromptRow(number, tokens, "a", "b", "c", {}, images=images)
        for number, (tokens, images) in enumerate(asked)
    ]
    first, again, shown, other = StepResult(made, ADVANTAGED, {}).visits
    assert first[0] == again[0]
    assert len({first[0], shown[0], other[0]}) == 3
    assert [scores for _, scores in (first, again, shown, other)] == [[0.5], [1.5], [2.5], [3.5]]


def test_a_visit_has_the_scores_of_rows_with_trained_tokens() -> None:
    without = msgspec.structs.replace(ADVANTAGED, without_tokens=[1, 2, 3])
    scores = [scores for _, scores in StepResult(batch(2, 2, set()), without, {}).visits]
    assert scores == [[0.5], []]


def test_a_visit_has_no_scores_of_responses_that_were_given() -> None:
    """What a prompt is known by is what the policy makes of it."""
    made = batch(2, 2, set())
    versions = [{OF_DATA: 3}, {0: 3}, {0: 1, 1: 2}, {}]
    made.metadata = [RowMetadata(3, is_truncated=False, versions=one) for one in versions]
    assert made.given_rows == {0}
    scores = [scores for _, scores in StepResult(made, ADVANTAGED, {}).visits]
    assert scores == [[1.5], [2.5, 3.5]]
