import math

import pytest
import torch

from ppojob_trainer.algorithms.value_loss import clipped_value_loss, explained_variance


@pytest.mark.parametrize(
    ("value", "target", "loss", "slope", "clipped"),
    [
        # V_old is 1 and the clip 0.5. Inside the range: (1.25 - 2)^2 / 2
        (1.25, 2.0, 0.28125, -0.75, False),
        # above it and near R: held at (1.5 - 2)^2 / 2, no gradient
        (1.75, 2.0, 0.125, 0.0, True),
        # above it and far from R: (2 - 0)^2 / 2 > (1.5 - 0)^2 / 2, pulled back
        (2.0, 0.0, 2.0, 2.0, False),
        # below it and near R: held at (0.5 - 0)^2 / 2
        (0.25, 0.0, 0.125, 0.0, True),
        # below it and far from R: (0 - 2)^2 / 2 > (0.5 - 2)^2 / 2
        (0.0, 2.0, 2.0, -2.0, False),
    ],
)
def test_by_hand(value: float, target: float, loss: float, slope: float, clipped: bool):
    new = torch.tensor([value], requires_grad=True)
    result = clipped_value_loss(new, torch.ones(1), torch.tensor([target]), value_clip=0.5)
    assert result.loss.item() == loss
    assert result.clipped.item() is clipped
    assert not result.clipped.requires_grad
    (gradient,) = torch.autograd.grad(result.loss.sum(), new)
    assert gradient.item() == slope


def test_explained_variance_by_hand():
    returns = torch.tensor([1.0, 2.0, 3.0, 100.0])
    mask = torch.tensor([True, True, True, False])

    def explained(values: list[float]) -> float:
        return explained_variance(torch.tensor([*values, math.nan]), returns, mask).item()

    assert explained([1.0, 2.0, 3.0]) == 1.0
    # a constant offset costs nothing, a constant explains nothing
    assert explained([11.0, 12.0, 13.0]) == 1.0
    assert explained([5.0, 5.0, 5.0]) == 0.0
    # errors 0, 0, 1.5: variance 0.5 over 2 / 3
    assert explained([1.0, 2.0, 1.5]) == pytest.approx(0.25)
    # wrong way round: errors -2, 0, 2, four times the variance
    assert explained([3.0, 2.0, 1.0]) == pytest.approx(-3.0)


def test_returns_without_variance_explain_nothing():
    ones = torch.ones(3)
    assert explained_variance(torch.tensor([1.0, 2.0, 3.0]), ones, ones.bool()).item() == 0.0
    assert explained_variance(ones, ones, ~ones.bool()).item() == 0.0


def test_a_nan_that_is_trained_is_seen():
    nan = torch.tensor([math.nan, 0.0])
    result = clipped_value_loss(nan, torch.zeros(2), torch.ones(2), value_clip=0.5)
    assert result.loss.isnan().tolist() == [True, False]
    seen = explained_variance(nan, torch.tensor([0.0, 1.0]), torch.ones(2, dtype=torch.bool))
    assert seen.isnan()
