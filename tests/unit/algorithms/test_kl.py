import math

import pytest
import torch
from ragged_batches import DTYPES

from ppojob_trainer.algorithms.kl import kl_estimate


@pytest.mark.parametrize("dtype", DTYPES)
def test_k3_is_cut_off_like_verls(dtype: torch.dtype):
    # d = 30 -> 20 -> e^20 - 21, at most 10; d = -30 -> -20 -> e^-20 + 19, at most 10
    new = torch.tensor([-30.0, 0.0, -2.0], dtype=dtype, requires_grad=True)
    ref = torch.tensor([0.0, -30.0, 0.0], dtype=dtype)
    value = kl_estimate(new, ref, "k3", mask=torch.ones(3, dtype=torch.bool))
    assert value.tolist() == pytest.approx([10.0, 10.0, math.exp(2) - 3], rel=1e-6)
    (gradient,) = torch.autograd.grad(value.sum(), new)
    assert gradient.tolist() == pytest.approx([0.0, 0.0, 1 - math.exp(2)], rel=1e-6)


def test_with_a_plus_the_value_is_kept_and_the_gradient_is_that_of_k2():
    new, ref = torch.tensor([-30.0, -0.5], requires_grad=True), torch.tensor([0.0, -1.5])
    value = kl_estimate(new, ref, "k3+", mask=torch.ones(2, dtype=torch.bool))
    # d = 30, cut off where k3 is; d = -1: e^-1 + 1 - 1. The slope of d²/2 is not cut off.
    assert value.tolist() == pytest.approx([10.0, math.exp(-1.0)])
    (gradient,) = torch.autograd.grad(value.sum(), new)
    assert gradient.tolist() == pytest.approx([-30.0, 1.0])
