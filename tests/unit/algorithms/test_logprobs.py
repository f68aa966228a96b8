import math

import pytest
import torch
from literal_comparison import compare_logprobs
from ragged_batches import DTYPES, Batch, for_any_batch

from ppojob_trainer.algorithms import logprobs as module
from ppojob_trainer.algorithms.logprobs import token_logprobs


@for_any_batch
def test_equal_to_the_literal_form(batch: Batch):
    for dtype in DTYPES:
        compare_logprobs(module, batch, dtype)


def test_by_hand():
    # logits log 1, log 2, log 5: probabilities 1/8, 2/8, 5/8; at temperature 0.5 they are squared:
    # 1/30, 4/30, 25/30
    logits = torch.tensor([[1.0, 2.0, 5.0], [1.0, 2.0, 5.0]], dtype=torch.float64).log()
    targets = torch.tensor([1, 2])
    logprobs, entropy = token_logprobs(logits, targets)
    assert logprobs.tolist() == pytest.approx([math.log(1 / 4), math.log(5 / 8)])
    expected = -(1 / 8 * math.log(1 / 8) + 1 / 4 * math.log(1 / 4) + 5 / 8 * math.log(5 / 8))
    assert entropy.tolist() == pytest.approx([expected, expected])
    logprobs, _ = token_logprobs(logits, targets, temperature=0.5)
    assert logprobs.tolist() == pytest.approx([math.log(4 / 30), math.log(25 / 30)])


def test_equal_logits_have_the_largest_entropy():
    logprobs, entropy = token_logprobs(torch.full((1, 8), 1e4), torch.tensor([3]))
    assert logprobs.item() == pytest.approx(-math.log(8))
    assert entropy.item() == pytest.approx(math.log(8))


def test_impossible_tokens_add_nothing_to_the_entropy():
    logits = torch.tensor([[0.0, -math.inf, 0.0]], requires_grad=True)
    logprobs, entropy = token_logprobs(logits, torch.tensor([0]))
    assert logprobs.item() == pytest.approx(-math.log(2))
    assert entropy.item() == pytest.approx(math.log(2))
    (gradient,) = torch.autograd.grad(entropy.sum() + logprobs.sum(), logits)
    assert gradient.tolist() == [pytest.approx([0.5, 0.0, -0.5])]


def test_bfloat16_is_computed_in_float32():
    logits = torch.tensor([[1.0, 2.0, 3.0, 0.125]], dtype=torch.bfloat16)
    actual = token_logprobs(logits, torch.tensor([1]), temperature=0.7)
    expected = token_logprobs(logits.float(), torch.tensor([1]), temperature=0.7)
    for a, b in zip(actual, expected, strict=True):
        assert a.dtype == torch.float32
        assert torch.equal(a, b)


def test_gradcheck():
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(4, 6, dtype=torch.float64, generator=generator, requires_grad=True)
    targets = torch.tensor([0, 5, 2, 2])
    assert torch.autograd.gradcheck(lambda z: token_logprobs(z, targets, 0.7), (logits,))


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
def test_senseless_temperatures_are_refused(temperature: float):
    with pytest.raises(ValueError, match="temperature: got"):
        token_logprobs(torch.zeros(1, 2), torch.tensor([0]), temperature)
