import pytest

from ppojob_trainer.algorithms.prompt_values import PRIOR, after_visits, first_belief, value


def test_beliefs_by_hand():
    """The value tracker of arXiv:2509.13232 with a decay of 1/2."""
    first = after_visits({}, [("7", [1.0]), ("3", [0.0, 0.25]), ("5", [])], decay=0.5)
    assert first == {"7": (1.25, 0.25), "3": (0.5, 2.0)}
    assert value(PRIOR) == 0.5
    assert value(first["3"]) == 0.2
    again = after_visits(first, [("7", [-2.0]), ("7", [9.0])], decay=0.5)
    # From (1.25, 0.25) by a score that counts as 0, and then by one that counts as 1.
    assert again == {"7": (pytest.approx(1.3125), pytest.approx(0.5625))}
    assert first == {"7": (1.25, 0.25), "3": (0.5, 2.0)}, "what it was made of stays"


def test_a_decay_of_one_counts_every_response():
    beliefs = after_visits({}, [("0", [1.0, 1.0, 0.0])] * 4, decay=1.0)
    assert value(beliefs["0"]) == pytest.approx(8.5 / 13.0)


def test_what_was_drawn_beforehand_counts_as_verl_counts_it():
    """With offline_N = 4 and clip_lower = 0.75, by its code: N_init (Σ s + 0.5) / (N + 1)."""
    scores = [1.0, 0.0, 1.0, 1.0]
    weight = 1 / (1 - 0.75)
    right, wrong = weight * (3 + 0.5) / 5, weight * (4 - 3 + 0.5) / 5
    assert first_belief(scores, decay=0.75) == pytest.approx((right, wrong))
    assert first_belief([], decay=0.75) == PRIOR
    assert value(first_belief([-1.0, 7.0], decay=0.0)) == 0.5
