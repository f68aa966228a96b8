import math

import pytest
import torch
from literal_comparison import compare_policy_gradient, compare_policy_loss
from ragged_batches import DTYPES, Batch, fixed_batches, for_any_batch

from ppojob_trainer.algorithms.policy_losses import clip as module
from ppojob_trainer.algorithms.policy_losses.clip import TokenLoss, clip


def clip_of_ratio(ratio: float, advantage: float, dual_clip: float = 3.0) -> TokenLoss:
    """One token with the given ratio, clip_low 0.2, clip_high 0.3."""
    return clip(
        torch.tensor([math.log(ratio)], dtype=torch.float64),
        torch.zeros(1, dtype=torch.float64),
        torch.tensor([advantage], dtype=torch.float64),
        clip_low=0.2,
        clip_high=0.3,
        dual_clip=dual_clip,
    )


@for_any_batch
def test_equal_to_the_literal_form(batch: Batch):
    for dtype in DTYPES:
        compare_policy_loss(module, batch, dtype)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "flags"),
    [
        # inside the range: -A rho
        (1.1, 2.0, -2.2, (False, False, False)),
        (0.9, -2.0, 1.8, (False, False, False)),
        # A > 0 above the range: max(-2 * 1.5, -2 * 1.3) = -2.6
        (1.5, 2.0, -2.6, (True, False, False)),
        # A > 0 below the range: max(-2 * 0.5, -2 * 0.8) = -1, not clipped
        (0.5, 2.0, -1.0, (False, False, False)),
        # A < 0 below the range: max(2 * 0.5, 2 * 0.8) = 1.6
        (0.5, -2.0, 1.6, (False, True, False)),
        # A < 0 above the range: max(2 * 1.5, 2 * 1.3) = 3, not clipped
        (1.5, -2.0, 3.0, (False, False, False)),
        # A < 0 far above: max(2 * 5, 2 * 1.3) = 10, held at 2 * 3 = 6
        (5.0, -2.0, 6.0, (False, False, True)),
        # no advantage, nothing to clip
        (5.0, 0.0, 0.0, (False, False, False)),
    ],
)
def test_by_hand(ratio: float, advantage: float, loss: float, flags: tuple[bool, bool, bool]):
    result = clip_of_ratio(ratio, advantage)
    assert result.loss.item() == pytest.approx(loss, abs=1e-12)
    actual = (result.clipped_high, result.clipped_low, result.dual_clipped)
    assert tuple(flag.item() for flag in actual) == flags


def test_without_dual_clip():
    result = clip_of_ratio(5.0, -2.0, dual_clip=0.0)
    assert result.loss.item() == pytest.approx(10.0)
    assert not result.dual_clipped.item()


@pytest.mark.parametrize("dtype", DTYPES)
def test_log_ratios_are_cut_off_at_20(dtype: torch.dtype):
    new = torch.tensor([0.0, -90.0], dtype=dtype, requires_grad=True)
    old = torch.tensor([-90.0, 0.0], dtype=dtype)
    result = clip(
        new,
        old,
        torch.tensor([-1.0, 1.0], dtype=dtype),
        clip_low=0.2,
        clip_high=0.2,
        dual_clip=0.0,
    )
    # -A e^20 = 485165195.41 and -A e^-20 = -2.0611536e-9; beyond the limit there is no gradient
    assert result.loss.tolist() == pytest.approx([485165195.41, -2.0611536e-9], rel=1e-6)
    assert result.log_ratio.tolist() == [20.0, -20.0]
    (gradient,) = torch.autograd.grad(result.loss.sum(), new)
    assert gradient.tolist() == [0.0, 0.0]


def test_the_first_update_has_the_plain_policy_gradient():
    new = torch.tensor([-1.0, -2.0, -0.5], requires_grad=True)
    weights = torch.tensor([1.5, -2.0, 0.0])
    result = clip(new, new.detach(), weights, clip_low=0.2, clip_high=0.2, dual_clip=3.0)
    (gradient,) = torch.autograd.grad(result.loss.sum(), new)
    assert torch.equal(gradient, -weights)


@for_any_batch
def test_gradient_equals_finite_differences_of_the_literal_loss(batch: Batch):
    compare_policy_gradient(module, batch, torch.float64)


@pytest.mark.parametrize("batch", fixed_batches()[:3])
def test_gradcheck(batch: Batch):
    new, old, weights = (
        batch.flat(name, torch.float64) for name in ("logprobs", "old_logprobs", "advantages")
    )

    def loss(logprobs: torch.Tensor) -> torch.Tensor:
        bounds = {"clip_low": 0.2, "clip_high": 0.28, "dual_clip": 3.0}
        return clip(logprobs, old, weights, mask=batch.flat_mask, **bounds).loss

    assert torch.autograd.gradcheck(loss, (new.requires_grad_(),))


def test_a_nan_that_is_trained_is_seen():
    new = torch.tensor([math.nan])
    result = clip(new, torch.zeros(1), torch.ones(1), clip_low=0.2, clip_high=0.2, dual_clip=3.0)
    assert result.loss.isnan().all()


def test_only_the_loss_carries_a_gradient():
    new = torch.tensor([-1.0], requires_grad=True)
    result = clip(new, torch.zeros(1), torch.ones(1), clip_low=0.2, clip_high=0.2, dual_clip=3.0)
    assert result.loss.requires_grad
    assert not result.log_ratio.requires_grad


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip_low": -0.1}, "clip_low, clip_high: got -0.1, 0.2: "),
        ({"clip_high": -0.1}, "clip_low, clip_high: got 0.2, -0.1: "),
        ({"dual_clip": 1.0}, "dual_clip: got 1.0: "),
        ({"dual_clip": math.nan}, "dual_clip: got nan: "),
    ],
)
def test_senseless_bounds_are_refused(options: dict[str, float], message: str):
    bounds = {"clip_low": 0.2, "clip_high": 0.2, "dual_clip": 3.0} | options
    with pytest.raises(ValueError, match=message):
        clip(torch.zeros(1), torch.zeros(1), torch.ones(1), **bounds)
