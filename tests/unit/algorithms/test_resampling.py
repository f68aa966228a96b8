from typing import Any

import pytest
import torch
from verl_batches import VERL

from ppojob_trainer.algorithms.resampling import drawn, resampling_weights
from ppojob_trainer.data.order import uniform_draws


@pytest.mark.parametrize("case", VERL["resampling"], ids=lambda case: case["method"])
def test_weights_of_verl(case: dict[str, Any]):
    """Theirs are of all rows, each of which has a trained token here."""
    for batch, theirs in zip(VERL["batches"], case["weights"], strict=True):
        scores = torch.tensor([sum(row) / 64 for row in batch["rewards"]])
        ours = resampling_weights(
            scores,
            torch.ones(len(scores), dtype=torch.bool),
            method=case["method"],
            power=case["power"],
        )
        assert ours.tolist() == pytest.approx(theirs, rel=1e-6, abs=1e-12)


def test_by_hand():
    # Borders 1, 1, 4 and 6. In sixths, 0 is row 0, 3 is row 2, 5.9 is row 3; the last goes unread.
    weights = torch.tensor([1.0, 0.0, 3.0, 2.0], dtype=torch.float64)
    draws = torch.tensor([0.0, 0.5, 5.9 / 6, 0.15], dtype=torch.float64)
    assert drawn(weights, draws).tolist() == [1, 0, 1, 1]
    assert drawn(weights, torch.full((4,), 1.0 - 2.0**-53, dtype=torch.float64)).tolist() == [
        *(0, 0, 0, 3)
    ]
    assert drawn(torch.zeros(3, dtype=torch.float64), draws[:3]).tolist() == [0, 0, 0]


def test_draws_belong_to_their_key():
    assert (uniform_draws(5, 1, 2) == uniform_draws(9, 1, 2)[:5]).all()
    assert (uniform_draws(5, 1, 2) != uniform_draws(5, 1, 3)).all()
    # Of all time.
    assert uniform_draws(2, 1, 2).tolist() == pytest.approx(KNOWN, abs=0.0)


KNOWN = (0.2996269638247443, 0.0739441105013603)
