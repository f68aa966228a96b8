import math

import pytest
import torch
from torch import Tensor

from ppojob_trainer.engine.fused_logprobs import LogprobSettings, fused_logprobs


def of_logits(logits: Tensor, targets: list[int], temperature: float = 1.0) -> tuple[Tensor, ...]:
    """The product's values where the hidden states are the logits."""
    settings = LogprobSettings(temperature, entropy="gradient")
    weight = torch.eye(logits.shape[1], dtype=logits.dtype)
    logprobs, entropy = fused_logprobs(logits, weight, torch.tensor(targets), settings)
    assert entropy is not None
    return logprobs, entropy


def test_by_hand():
    # logits log 1, log 2, log 5: probabilities 1/8, 2/8, 5/8; at temperature 0.5 they are squared:
    # 1/30, 4/30, 25/30
    logits = torch.tensor([[1.0, 2.0, 5.0], [1.0, 2.0, 5.0]], dtype=torch.float64).log()
    logprobs, entropy = of_logits(logits, [1, 2])
    assert logprobs.tolist() == pytest.approx([math.log(1 / 4), math.log(5 / 8)])
    expected = -(1 / 8 * math.log(1 / 8) + 1 / 4 * math.log(1 / 4) + 5 / 8 * math.log(5 / 8))
    assert entropy.tolist() == pytest.approx([expected, expected])
    logprobs, _ = of_logits(logits, [1, 2], temperature=0.5)
    assert logprobs.tolist() == pytest.approx([math.log(4 / 30), math.log(25 / 30)])


def test_equal_logits_have_the_largest_entropy():
    logprobs, entropy = of_logits(torch.full((1, 8), 16.0), [3])
    assert logprobs.item() == pytest.approx(-math.log(8))
    assert entropy.item() == pytest.approx(math.log(8))


def test_bfloat16_is_computed_in_float32():
    logits = torch.tensor([[1.0, 2.0, 3.0, 0.125]], dtype=torch.bfloat16)
    actual = of_logits(logits, [1], temperature=0.7)
    expected = of_logits(logits.float(), [1], temperature=0.7)
    for a, b in zip(actual, expected, strict=True):
        assert a.dtype == torch.float32
        assert torch.equal(a, b)


def test_gradcheck():
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(4, 6, dtype=torch.float64, generator=generator, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z: of_logits(z, [0, 5, 2, 2], 0.7), (logits,))
