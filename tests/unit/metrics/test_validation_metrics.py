"""mean@n, std@n, best@n, worst@n and maj@n against a literal loop over the bootstraps."""

import math
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppojob_trainer.metrics import names
from ppojob_trainer.metrics.validation import (
    ValidationRow,
    majority_samples,
    prompt_statistics,
    validation_metrics,
)


def row(source: str, prompt: int, score: float, **extras: float | str) -> ValidationRow:
    extras = {"acc": float(score == 1.0), **extras}
    return ValidationRow(data_source=source, prompt_id=prompt, score=score, extras=extras)


def literal(values: list[float], votes: list[str] | None) -> dict[str, float]:
    """The definition, one draw at a time; numpy's global stream as verl uses it."""
    count = len(values)
    found = {f"mean@{count}": sum(values) / count, "mean@1": sum(values) / count}
    if count == 1:
        return found
    mean = sum(values) / count
    found[f"std@{count}"] = math.sqrt(sum((value - mean) ** 2 for value in values) / count)
    sizes = [size for size in (2, 4, 8, 16) if size < count] + [count]
    for size in sizes:
        stream = np.random.RandomState(42)
        results: dict[str, list[float]] = {"best": [], "worst": [], "maj": []}
        for _ in range(1000):
            drawn = [int(index) for index in stream.choice(count, size=size, replace=True)]
            taken = [values[index] for index in drawn]
            results["best"].append(max(taken))
            results["worst"].append(min(taken))
            if votes is not None:
                answers = [votes[index] for index in drawn]
                winner = Counter(answers).most_common(1)[0][0]  # of equals the first seen
                results["maj"].append(taken[answers.index(winner)])
        for name, outcome in results.items():
            if outcome:
                average = sum(outcome) / 1000
                spread = math.sqrt(sum((value - average) ** 2 for value in outcome) / 1000)
                found[f"{name}@{size}/mean"] = average
                found[f"{name}@{size}/std"] = spread
    return found


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 0.1, 1.0, 2.5]), st.sampled_from("abc")),
        min_size=1,
        max_size=9,
    ),
    st.booleans(),
)
def test_prompt_statistics_equal_the_definition(samples, has_votes):
    values = [value for value, _ in samples]
    votes = [vote for _, vote in samples] if has_votes else None
    winners = None if votes is None else majority_samples(votes)
    found, expected = prompt_statistics(values, winners), literal(values, votes)
    assert found.keys() == expected.keys()
    assert found == pytest.approx(expected, abs=1e-12)


def test_answers_of_many_samples_are_counted_in_little_memory():
    """Every draw beside every other would be a gigabyte."""
    votes = [str(n % 700) for n in range(1024)]
    tracemalloc.start()
    try:
        found = majority_samples(votes)[1024]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100 * 2**20
    drawn = np.random.RandomState(42).choice(1024, size=(1000, 1024))
    for sample, bootstrap in zip(found, drawn, strict=True):
        answers = [votes[index] for index in bootstrap]
        (winner, _), *_ = Counter(answers).most_common(1)
        assert sample == bootstrap[answers.index(winner)]


def test_one_sample_a_prompt_by_hand():
    found = validation_metrics(
        [row("gsm8k", 0, 1.0), row("gsm8k", 1, 0.1), row("math", 2, 1.0), row("gsm8k", 3, 0.0)]
    )
    assert found == {
        "val-aux/gsm8k/reward/mean@1": pytest.approx(1.1 / 3),
        "val-aux/math/reward/mean@1": 1.0,
        "val-core/gsm8k/acc/mean@1": pytest.approx(1 / 3),
        "val-core/math/acc/mean@1": 1.0,
    }


def test_accuracy_is_as_it_was_scored():
    found = validation_metrics([row("s", 0, 0.9, acc=1.0), row("s", 1, 1.0, acc=2.5)])
    assert found["val-core/s/acc/mean@1"] == 1.75


def test_core_takes_the_largest_n_only():
    rows = [row("s", prompt, float(n == 0), pred="x") for prompt in (0, 1) for n in range(8)]
    found = validation_metrics(rows)
    core = {key.removeprefix("val-core/s/") for key in found if key.startswith("val-core/")}
    assert core == {
        "acc/mean@1",
        "acc/mean@8",
        "acc/best@8/mean",
        "acc/best@8/std",
        "acc/maj@8/mean",
        "acc/maj@8/std",
    }
    assert {"val-aux/s/acc/best@2/mean", "val-aux/s/acc/best@4/mean"} <= found.keys()
    assert {key.split("/")[2] for key in found} == {"acc", "reward"}


def test_a_variable_counts_where_every_sample_has_it():
    rows = [row("s", 0, 1.0, format=1.0), row("s", 1, 0.0), row("t", 2, 0.0, format=0.5)]
    found = validation_metrics(rows)
    assert "val-aux/s/format/mean@1" not in found
    assert found["val-aux/t/format/mean@1"] == 0.5


def test_unequal_numbers_of_samples_and_no_vote_without_an_answer_of_each():
    rows = [row("s", 0, 1.0, pred="7"), row("s", 0, 0.0), row("s", 1, 1.0)]
    found = validation_metrics(rows)
    assert found["val-core/s/acc/mean@1"] == 0.75
    assert found["val-core/s/acc/mean@2"] == 0.5
    assert not [key for key in found if "maj@" in key]


def test_every_key_has_a_row_in_the_table_and_repeats():
    rows = [
        row("open/gsm8k", prompt, float(n == 0), pred=str(n), format=0.5)
        for prompt in (0, 1)
        for n in range(4)
    ]
    found = validation_metrics(rows)
    assert found == validation_metrics(rows)
    assert list(found) == sorted(found)
    assert [key for key in found if names.find(key) is None] == []


def test_what_nothing_scores_has_no_reward() -> None:
    assert validation_metrics([ValidationRow("a", 0, math.nan, {})]) == {}
