import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppojob_trainer.algorithms.kl_controller import KlController


@pytest.mark.parametrize(
    ("current", "expected"),
    [
        # target 0.1, horizon 1000, 50 responses, coefficient 0.2
        (0.1, 0.2),
        (0.11, 0.2 * (1 + 0.1 * 50 / 1000)),
        # an error of 4 counts as 0.2, one of -1 as -0.2
        (0.5, 0.2 * (1 + 0.2 * 50 / 1000)),
        (0.0, 0.2 * (1 - 0.2 * 50 / 1000)),
    ],
)
def test_adaptive_controller_by_hand(current: float, expected: float):
    controller = KlController(0.2, target=0.1, horizon=1000)
    controller.update(current_kl=current, num_responses=50)
    assert controller.coefficient == pytest.approx(expected, rel=1e-12)


@given(
    st.lists(st.tuples(st.floats(), st.integers(1, 10**6)), max_size=50),
    st.integers(1, 10**4),
)
def test_the_coefficient_stays_a_penalty_whatever_is_measured(steps, horizon: int):
    controller = KlController(1e-3, target=0.1, horizon=horizon)
    for current, responses in steps:
        before = controller.coefficient
        controller.update(current, responses)
        assert 0.8 * before <= controller.coefficient <= 1.2 * before


def test_a_step_of_more_responses_than_the_horizon_counts_as_the_horizon():
    controller = KlController(1e-3, target=0.1, horizon=1000)
    controller.update(current_kl=0.01, num_responses=8192)
    assert controller.coefficient == pytest.approx(0.8e-3, rel=1e-12)


@pytest.mark.parametrize("current", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_moves_nothing(current: float):
    controller = KlController(1e-3, target=0.1, horizon=1000)
    controller.update(current_kl=current, num_responses=50)
    assert controller.coefficient == 1e-3
