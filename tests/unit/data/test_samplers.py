import math

import numpy as np
import pytest

from ppojob_api.well_known import BUILT_IN_SAMPLERS, SEEN_OF_ROWS
from ppojob_trainer.data.order import uniform_draws
from ppojob_trainer.data.samplers import SAMPLERS, checked, nearest, read_answer, uncertain
from ppojob_trainer.data.score_history import RowHistory, after_step, columns
from ppojob_trainer.errors import BadInput


def rows_of(values: list[float], **others: object) -> dict[str, object]:
    return {"value": np.array(values), "draws": np.zeros(len(values)), **others}


def test_all_of_the_table_are_built_in() -> None:
    assert sorted(SAMPLERS) == list(BUILT_IN_SAMPLERS)
    assert {"data_source", *columns({}, np.full(1, 0.5))} == set(SEEN_OF_ROWS)


def test_nearest_takes_those_next_to_the_target_and_some_others() -> None:
    rows = rows_of([0.0, 0.5, 1.0, 0.25, 0.45, 1.0])
    assert set(nearest(1, 0, 3, rows, explore=0.0)) == {1, 4, 3}
    assert nearest(1, 0, 2, rows, target=0.3, explore=0.0) == [3, 4]
    seen = [set(nearest(step, 0, 4, rows, explore=0.5)) for step in range(40)]
    assert all({1, 4} < chosen and len(chosen) == 4 for chosen in seen)
    assert set().union(*seen) == set(range(6))
    levels = {"level": [3, 1, None, 2]}
    assert set(
        nearest(1, 0, 2, rows_of([0.5] * 4, **levels), target=1.6, explore=0, column="level")
    ) == {1, 3}


def test_uncertain_draws_by_the_weight_of_the_paper_and_without_replacement() -> None:
    """In proportion to sqrt(v (1 - v)) + epsilon; the second of two as of what is left."""
    values, draws = [0.0, 0.5, 0.9], 20_000
    weights = [math.sqrt(v * (1 - v)) + 0.1 for v in values]
    pairs = [tuple(uncertain(step, 3, 2, rows_of(values), epsilon=0.1)) for step in range(draws)]
    whole = sum(weights)
    for first in range(3):
        for second in {0, 1, 2} - {first}:
            left = whole - weights[first]
            expected = weights[first] / whole * weights[second] / left
            found = sum(pair == (first, second) for pair in pairs) / draws
            assert found == pytest.approx(expected, abs=0.012)


def test_uncertain_is_the_literal_draw() -> None:
    values = [0.2, 0.5, 1.0, 0.7]
    late = [
        -math.log(1 - u) / (math.sqrt(v * (1 - v)) + 0.05)
        for u, v in zip(uniform_draws(4, 5, 9), values, strict=True)
    ]
    order = sorted(range(4), key=late.__getitem__)
    assert uncertain(9, 5, 3, rows_of(values)) == order[:3]


def test_uncertain_without_epsilon_draws_no_row_that_is_sure() -> None:
    rows = rows_of([0.0, 0.5, 1.0, 0.5])
    assert {*uncertain(1, 0, 2, rows, epsilon=0.0)} == {1, 3}
    with pytest.raises(BadInput, match="fewer than 3 rows with a weight above 0"):
        uncertain(1, 0, 3, rows, epsilon=0.0)


def test_a_step_tells_of_its_rows() -> None:
    first = after_step({}, 1, [(2, [1.0, 0.0]), (0, [])])
    assert first == {"2": RowHistory(1, 1, 2, 1.0, 0.5), "0": RowHistory(1, 1, 0, 0.0, None)}
    second = after_step(first, 4, [(2, [3.0, 3.0])])
    assert second == {"2": RowHistory(2, 4, 4, 7.0, 3.0), "0": first["0"]}
    told = {
        name: column.tolist()
        for name, column in columns(second, np.array([0.25, 0.75, 0.5])).items()
    }
    nan = pytest.approx(math.nan, nan_ok=True)
    assert told == {
        "draws": [1, 0, 2],
        "last_step": [1, 0, 4],
        "responses": [0, 0, 4],
        "mean_score": [nan, nan, 1.75],
        "last_score": [nan, nan, 3.0],
        "value": [0.25, 0.75, 1.0],
    }


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ([0, 1], "got 2 rows: the step draws 3"),
        ([0, 1, 4], "got row 4: there are 4; 0 to 3"),
        ([0, 1, -1], "got row -1: there are 4"),
        ([0, 1, 1], "got row 1 2 times: its responses"),
        ([0, 1.0, 2], "not a list of row numbers"),
        (None, "got NoneType None: it is not a list of row numbers"),
    ],
)
def test_another_answer_than_so_many_rows_is_refused(answer: object, told: str) -> None:
    with pytest.raises(BadInput, match=told):
        read_answer(answer, 3, 4, has_state=False)


def test_arrays_of_rows_and_a_state_are_answers() -> None:
    assert read_answer(np.array([3, 0]), 2, 4, has_state=False) == ([3, 0], None)
    assert read_answer((np.arange(2), {"at": 2}), 2, 4, has_state=True) == ([0, 1], {"at": 2})
    with pytest.raises(BadInput, match="a function with state returns rows and the next"):
        read_answer([0, 1], 2, 4, has_state=True)


class Sampler:
    pass


@pytest.mark.parametrize(
    ("function", "arguments", "told"),
    [
        (Sampler, {}, "class f: its objects could have state that no checkpoint has"),
        (lambda step, seed: [], {}, "cannot be called with step, seed, count, rows: too many"),
        (uncertain, {"share": 1}, "unexpected keyword argument 'share'"),
        (lambda *_, state: [], {"state": 1}, "the function has this argument"),
    ],
)
def test_what_cannot_be_called_is_refused(function, arguments, told: str) -> None:
    with pytest.raises(BadInput, match=told):
        checked("f", function, arguments)
