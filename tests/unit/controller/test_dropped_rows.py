"""Which responses a step leaves out, where reward functions fail."""

import msgspec
import pytest

from ppojob_trainer.controller.batch import Batch, dropped_rows
from ppojob_trainer.controller.records import step_rows
from ppojob_trainer.controller.training_step import StepResult
from ppojob_trainer.data.prompt_store import PromptRow
from ppojob_trainer.errors import RewardFailed
from ppojob_trainer.metrics.step_metrics import Spread
from ppojob_trainer.rpc.messages.training import Advantaged


def batch(samples: int, dropped: set[int]) -> Batch:
    prompts = [PromptRow(number, (1,), "a", "b", "c", {}) for number in range(3)]
    made = Batch("train", prompts, samples, owners=1)
    made.extras = [
        msgspec.json.encode({"acc": 0.0, "dropped": float(row in dropped)})
        for row in range(made.num_rows)
    ]
    return made


def test_rows_and_those_whose_greedy_response_has_no_score() -> None:
    assert dropped_rows(batch(2, {1, 4}), None, 1) == [1, 4]
    assert dropped_rows(batch(2, {1}), batch(1, {2}), 1) == [1, 4, 5]
    assert dropped_rows(batch(2, set()), batch(1, set()), 1) == []


def test_a_step_of_which_nothing_is_left_fails() -> None:
    with pytest.raises(RewardFailed, match="drop for all 6 responses of step 7"):
        dropped_rows(batch(2, {0, 1, 2, 3}), batch(1, {2}), 7)


def test_of_a_row_that_is_left_out_failures_count_alone() -> None:
    made = batch(1, set())
    made.scores, made.lengths, made.truncated = [1.0, 0.0, 0.5], [4, 4, 4], [False] * 3
    kept = {"acc": 1.0, "f/score": 1.0, "f/failed": 0.0, "dropped": 0.0}
    lost = {"acc": 0.0, "f/score": 0.0, "f/failed": 1.0, "pred": "0", "dropped": 1.0}
    made.extras = [msgspec.json.encode(values) for values in (kept, lost, kept)]
    none = Spread(0.0, 0.0, 0.0)
    told = Advantaged([1.0, 0.0, 0.5], none, none, 0.0, [], [], row_advantages=[0.0] * 3)
    result = StepResult(made, told, {}, dropped=[1])
    assert result.scores == [1.0, 0.5]
    rows = step_rows(result)
    assert rows.extras == [kept, {"f/failed": 1.0, "dropped": 1.0}, kept]
    assert rows.dropped == [1]
