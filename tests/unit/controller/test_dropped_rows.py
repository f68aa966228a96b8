"""Which responses a step leaves out, where reward functions fail."""

import msgspec
import pytest

from ppojob_trainer.controller.batch import Batch
from ppojob_trainer.controller.training_step import dropped_rows
from ppojob_trainer.data.prompt_store import PromptRow
from ppojob_trainer.errors import RewardFailed


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
