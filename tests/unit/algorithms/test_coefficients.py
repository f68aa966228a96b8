import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppojob_trainer.algorithms.coefficients import (
    EntropyController,
    SupervisedSchedule,
    next_kl_coefficient,
)

CONTROLLER = EntropyController(target=0.2, step=0.005, low=0.0, high=0.011)

TABLE = json.loads(Path(__file__).with_name("skywork_numbers.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("run", TABLE["runs"], ids=lambda run: run["first"])
def test_numbers_of_skywork(run: dict[str, Any]):
    """There a step has the bonus that the entropy of the step before allows."""
    controller = EntropyController(**run["settings"])
    coefficient = run["first"]
    for entropy, theirs, enabled in zip(
        run["entropies"], run["coefficients"], run["enabled"], strict=True
    ):
        assert (controller.bonus(1.0, entropy) > 0.0) == bool(enabled)
        coefficient = controller.after(coefficient, entropy)
        assert coefficient == pytest.approx(theirs, abs=1e-9)


@pytest.mark.parametrize(
    ("entropy", "bonus", "following"),
    [
        (0.1, 0.004, 0.009),
        (0.2, 0.004, 0.004),
        (0.3, 0.0, 0.0),  # 0.004 - 0.005 is below the least
        (math.nan, 0.0, 0.004),
        (-math.inf, 0.004, 0.009),
    ],
)
def test_by_hand(entropy: float, bonus: float, following: float):
    assert CONTROLLER.bonus(0.004, entropy) == bonus
    assert CONTROLLER.after(0.004, entropy) == pytest.approx(following, abs=1e-15)


@given(st.lists(st.floats(), max_size=50))
def test_it_stays_within_bounds_and_moves_a_step_at_most(entropies: list[float]):
    coefficient = 0.006
    for entropy in entropies:
        before, coefficient = coefficient, CONTROLLER.after(coefficient, entropy)
        assert 0.0 <= coefficient <= 0.011
        assert abs(coefficient - before) <= 0.005 + 1e-12
        assert CONTROLLER.bonus(coefficient, entropy) in (0.0, coefficient)


@pytest.mark.parametrize(
    ("measured", "responses", "factor"),
    [
        # target 0.1, horizon 1000
        (0.1, 50, 1.0),
        (0.11, 50, 1 + 0.1 * 50 / 1000),
        # an error of 4 counts as 0.2, one of -1 as -0.2
        (0.5, 50, 1 + 0.2 * 50 / 1000),
        (0.0, 50, 1 - 0.2 * 50 / 1000),
        (0.01, 8192, 0.8),  # more responses than the horizon count as the horizon
        (math.nan, 50, 1.0),
        (math.inf, 50, 1.0),
    ],
)
def test_kl_coefficient_by_hand(measured: float, responses: int, factor: float):
    following = next_kl_coefficient(0.2, measured, responses, target=0.1, horizon=1000)
    assert following == pytest.approx(0.2 * factor, rel=1e-12)


@given(st.floats(), st.integers(1, 10**6), st.integers(1, 10**4))
def test_a_step_changes_the_kl_coefficient_by_a_fifth_at_most(measured, responses, horizon):
    following = next_kl_coefficient(1e-3, measured, responses, target=0.1, horizon=horizon)
    assert 0.8e-3 <= following <= 1.2e-3


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [0.5] * 9),
        ({"warmup_steps": 2}, [0.0, 0.25, *[0.5] * 7]),
        (
            {"schedule": "linear", "decay_steps": 4, "min_coefficient": 0.1},
            [0.5, 0.4, 0.3, 0.2, *[0.1] * 5],
        ),
        # What CHORD's authors compute with peak 0.5, valley 0.02, two steps of warm-up and four of
        # decay, which they do not count with the warm-up.
        (
            {"warmup_steps": 2, "schedule": "cosine", "decay_steps": 6, "min_coefficient": 0.02},
            [0.0, 0.25, 0.5, 0.4297056, 0.26, 0.0902944, 0.02, 0.02, 0.02],
        ),
    ],
)
def test_what_given_answers_count_by_hand(settings: dict[str, Any], expected: list[float]):
    schedule = SupervisedSchedule(0.5, **settings)
    assert list(map(schedule.after, range(9))) == pytest.approx(expected)
    assert schedule.changes == (len(set(expected)) > 1)


def test_a_schedule_that_falls_to_nothing_is_nothing_in_the_end():
    schedule = SupervisedSchedule(0.9, schedule="cosine", decay_steps=7)
    assert schedule.after(6) > 0.0
    assert schedule.after(7) == schedule.after(10**6) == 0.0
