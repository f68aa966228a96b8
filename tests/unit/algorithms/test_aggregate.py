import random
from itertools import pairwise

import pytest
import torch
from ragged_batches import Batch, fixed_batches

from ppojob_trainer.algorithms.aggregate import AGGREGATIONS, aggregate

# Rows of 3 and 1 tokens; the middle token of the first is masked.
VALUES = torch.tensor([1.0, 50.0, 3.0, 8.0], dtype=torch.float64)
MASK = torch.tensor([True, False, True, True])
LENGTHS = torch.tensor([3, 1])


def whole(values: torch.Tensor, mask: torch.Tensor, mode: str) -> torch.Tensor:
    return aggregate(
        values, mask, LENGTHS, mode, global_tokens=3, global_sequences=2, scale_tokens=10
    )


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_a_nan_inside_the_mask_is_seen(mode: str):
    values = VALUES.clone()
    values[0] = torch.nan
    assert whole(values, MASK, mode).isnan()


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_counts_of_zero_give_zero_where_nothing_is_trained(mode: str):
    values = VALUES.clone().requires_grad_()
    counts = {"global_tokens": 0, "global_sequences": 0, "scale_tokens": 10}
    result = aggregate(values, torch.zeros_like(MASK), LENGTHS, mode, **counts)
    assert result.item() == 0.0
    (gradient,) = torch.autograd.grad(result, values)
    assert gradient.tolist() == [0.0] * len(VALUES)


def test_the_mean_of_a_row_divides_by_its_exact_count():
    # verl divides 2e9 by 2 + 1e-8, which is 5 less than 1e9.
    values = torch.tensor([1e9, 1e9], dtype=torch.float64)
    result = aggregate(
        values,
        torch.ones(2, dtype=torch.bool),
        torch.tensor([2]),
        "sequence_mean_token_mean",
        global_tokens=2,
        global_sequences=1,
    )
    assert result.item() == 1e9


def loss_of(batch: Batch, new: torch.Tensor, rows: range, mode: str) -> torch.Tensor:
    """Of some neighbouring rows, with the denominators of the whole batch."""
    lengths = batch.lengths
    start, stop = int(lengths[: rows.start].sum()), int(lengths[: rows.stop].sum())
    return aggregate(
        (new.exp() * batch.flat("advantages", torch.float64))[start:stop],
        batch.flat_mask[start:stop],
        lengths[rows.start : rows.stop],
        mode,
        global_tokens=max(batch.num_tokens, 1),
        global_sequences=len(batch.groups),
        scale_tokens=6,
    )


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_micro_batches_add_up_to_the_mini_batch(mode: str):
    source = random.Random(5)
    for batch in fixed_batches():
        rows = len(batch.groups)
        new = batch.flat("logprobs", torch.float64).requires_grad_()
        expected = loss_of(batch, new, range(rows), mode)
        (expected_gradient,) = torch.autograd.grad(expected, new)
        inner = [r for r in range(1, rows) if source.random() < 0.5]
        for cuts in ([0, *inner, rows], list(range(rows + 1))):
            parts = [loss_of(batch, new, range(a, b), mode) for a, b in pairwise(cuts)]
            total = torch.stack(parts).sum()
            assert total.item() == pytest.approx(expected.item(), rel=1e-9, abs=1e-9)
            (gradient,) = torch.autograd.grad(total, new)
            assert gradient.tolist() == pytest.approx(expected_gradient.tolist(), abs=1e-9)
