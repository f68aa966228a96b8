import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppojob_trainer.algorithms.entropy_controller import EntropyController

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


def test_it_rises_to_its_bound_and_falls_to_the_other():
    coefficient, seen = 0.0, []
    for entropy in [0.1] * 4 + [0.4] * 4:
        coefficient = CONTROLLER.after(coefficient, entropy)
        seen.append(coefficient)
    assert seen == pytest.approx([0.005, 0.01, 0.011, 0.011, 0.006, 0.001, 0.0, 0.0])


@given(st.lists(st.floats(), max_size=50))
def test_it_stays_within_bounds_and_moves_a_step_at_most(entropies: list[float]):
    coefficient = 0.006
    for entropy in entropies:
        before, coefficient = coefficient, CONTROLLER.after(coefficient, entropy)
        assert 0.0 <= coefficient <= 0.011
        assert abs(coefficient - before) <= 0.005 + 1e-12
        assert CONTROLLER.bonus(coefficient, entropy) in (0.0, coefficient)
