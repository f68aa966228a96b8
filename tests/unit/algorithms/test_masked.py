import pytest
import torch
from ragged_batches import Batch, for_any_batch

from ppojob_trainer.algorithms import masked

# Three rows of 3, 1 and 2 tokens; the middle token of the first and the only one of the second
# are masked.
VALUES = torch.tensor([1.0, 100.0, 2.0, 100.0, 4.0, 8.0], dtype=torch.float64)
MASK = torch.tensor([True, False, True, False, True, True])
LENGTHS = torch.tensor([3, 1, 2])


def test_whiten_does_not_hide_a_nan_that_is_trained():
    values = VALUES.clone()
    values[4] = torch.nan
    assert masked.whiten(values, MASK)[MASK].isnan().all()
    only = torch.tensor([False, False, False, False, True, False])
    assert masked.whiten(values, only)[4].isnan()


def test_lengths_that_do_not_fit_are_refused():
    with pytest.raises(RuntimeError, match="lengths"):
        masked.row_sum(VALUES, MASK, torch.tensor([3, 1, 4]))


@for_any_batch
def test_masked_tokens_change_neither_values_nor_gradients(batch: Batch):
    for reduce in (
        lambda v: masked.row_sum(v, batch.flat_mask, batch.lengths).square().sum(),
        lambda v: masked.row_mean(v, batch.flat_mask, batch.lengths).square().sum(),
        lambda v: masked.masked_sum(v, batch.flat_mask).square(),
    ):
        clean = batch.flat("logprobs", torch.float64).requires_grad_()
        poisoned = batch.flat_poisoned("logprobs", torch.float64).requires_grad_()
        expected, actual = reduce(clean), reduce(poisoned)
        assert torch.equal(actual, expected)
        (expected_gradient,) = torch.autograd.grad(expected, clean)
        (gradient,) = torch.autograd.grad(actual, poisoned)
        assert torch.equal(gradient, expected_gradient)
        assert not gradient[~batch.flat_mask].any()
