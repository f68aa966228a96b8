import math

import pytest
import torch
from ragged_batches import DTYPES

from ppojob_trainer.algorithms.kl import apply_kl_penalty, kl_estimate


@pytest.mark.parametrize(
    ("estimator", "expected", "swapped"),
    [
        # the policy gives the token 0.5, the reference 0.25: d = log 0.25 - log 0.5 = -0.6931472
        ("k1", 0.6931472, -0.6931472),
        ("k2", 0.2402265, 0.2402265),
        # 0.25 / 0.5 + 0.6931472 - 1; swapped: 2 - 0.6931472 - 1
        ("k3", 0.1931472, 0.3068528),
        ("abs", 0.6931472, 0.6931472),
    ],
)
def test_by_hand(estimator: str, expected: float, swapped: float):
    half, quarter = torch.tensor([math.log(0.5)]), torch.tensor([math.log(0.25)])
    assert kl_estimate(half, quarter, estimator).item() == pytest.approx(expected, abs=1e-6)
    assert kl_estimate(quarter, half, estimator).item() == pytest.approx(swapped, abs=1e-6)


def test_k1_and_k3_estimate_the_divergence():
    # Their means under the policy are the exact KL of two distributions over three tokens.
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    q = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    exact = (p * (p / q).log()).sum()
    for estimator in ("k1", "k3"):
        mean = (p * kl_estimate(p.log(), q.log(), estimator)).sum()
        assert mean.item() == pytest.approx(exact.item(), abs=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
def test_k3_is_cut_off_like_verls(dtype: torch.dtype):
    # d = 30 -> 20 -> e^20 - 21, at most 10; d = -30 -> -20 -> e^-20 + 19, at most 10
    new = torch.tensor([-30.0, 0.0, -2.0], dtype=dtype, requires_grad=True)
    ref = torch.tensor([0.0, -30.0, 0.0], dtype=dtype)
    value = kl_estimate(new, ref, "k3")
    assert value.tolist() == pytest.approx([10.0, 10.0, math.exp(2) - 3], rel=1e-6)
    (gradient,) = torch.autograd.grad(value.sum(), new)
    assert gradient.tolist() == pytest.approx([0.0, 0.0, 1 - math.exp(2)], rel=1e-6)


def test_with_a_plus_the_value_is_kept_and_the_gradient_is_that_of_k2():
    new, ref = torch.tensor([-30.0, -0.5], requires_grad=True), torch.tensor([0.0, -1.5])
    value = kl_estimate(new, ref, "k3+")
    # d = 30, cut off where k3 is; d = -1: e^-1 + 1 - 1. The slope of d²/2 is not cut off.
    assert value.tolist() == pytest.approx([10.0, math.exp(-1.0)])
    (gradient,) = torch.autograd.grad(value.sum(), new)
    assert gradient.tolist() == pytest.approx([-30.0, 1.0])


def test_penalty_by_hand():
    # 1 - 0.1 * 2 and 0 - 0.1 * -0.5; nothing of it is differentiated
    kl = torch.tensor([2.0, -0.5], requires_grad=True)
    result = apply_kl_penalty(torch.tensor([1.0, 0.0]), kl, 0.1)
    assert result.tolist() == pytest.approx([0.8, 0.05])
    assert not result.requires_grad
