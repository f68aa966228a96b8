"""What a job says of sampling reaches the engine, for training and for validations."""

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
from tiny_models import NAMES


def test_a_penalty_and_min_p_reach_training_and_validation(alone: Callable[..., Path]) -> None:
    """With so large a penalty no token comes again; with such a min-p hardly a choice is left."""
    one_of_a_kind = {"repetitionPenalty": 100}
    rollout = {
        **{"engine": "huggingface", "dtype": "float32", "validation": one_of_a_kind},
        **{"minP": 0.9999, **one_of_a_kind},
    }
    steps = {"total": 1, "validateEvery": 1}
    run = alone(rollout=rollout, steps=steps)
    for batch in ("rollouts/step-000001.parquet", "validation/step-000000.parquet"):
        rows = pq.read_table(run / batch).to_pylist()
        assert rows
        for row in rows:
            assert len(set(row["response_ids"])) == len(row["response_ids"]) > 1
            assert set(row["rollout_logprobs"]) == {0.0} or "validation" in batch


def test_stop_strings_end_responses(alone: Callable[..., Path]) -> None:
    """In training and validation; the last of them is of two tokens."""
    ends = [*"aeiou", "nn"]
    rollout = {"engine": "huggingface", "dtype": "float32", "stopStrings": ends}
    sampled = {**rollout, "validation": {"temperature": 1.0}}
    run = alone(rollout=sampled, steps={"total": 1, "validateEvery": 1})
    stopped = 0
    for batch in ("rollouts/step-000001.parquet", "validation/step-000000.parquet"):
        for row in pq.read_table(run / batch).to_pylist():
            *before, last = (NAMES[n] for n in row["response_ids"])
            assert not any(end in "".join(before) for end in ends)
            stopped += any(map("".join([*before, last]).endswith, ends))
    assert stopped > 5
