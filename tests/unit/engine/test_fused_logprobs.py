import pytest
import torch
from padded_reference import token_logprobs

from ppojob_trainer.engine import fused_logprobs as module
from ppojob_trainer.engine.fused_logprobs import LogprobSettings, fused_logprobs

TOKENS, HIDDEN, VOCAB = 23, 8, 41


@pytest.fixture
def case():
    torch.manual_seed(3)
    hidden = torch.randn(TOKENS, HIDDEN, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(VOCAB, HIDDEN, dtype=torch.float64, requires_grad=True)
    return hidden, weight, torch.randint(VOCAB, (TOKENS,))


@pytest.mark.parametrize("chunk", [1, 3, 7, 100, 0])
@pytest.mark.parametrize("block", [1, 5, 4096])
@pytest.mark.parametrize(("temperature", "cap"), [(1.0, None), (0.7, None), (0.7, 2.0)])
def test_equals_the_definition_with_gradients(case, chunk, block, temperature, cap, monkeypatch):
    monkeypatch.setattr(module, "TOKEN_BLOCK", block)
    hidden, weight, targets = case
    factors = torch.randn(2, TOKENS, dtype=torch.float64)
    logits = hidden @ weight.T
    if cap is not None:
        logits = cap * torch.tanh(logits / cap)
    expected = token_logprobs(logits, targets, temperature)
    settings = LogprobSettings(temperature, chunk, "gradient", cap=cap)
    got = fused_logprobs(hidden, weight, targets, settings)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)
    ours, theirs = (
        torch.autograd.grad((factors[0] * a + factors[1] * b).sum(), (hidden, weight))
        for a, b in (got, expected)
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("chunk", [1, 3, 7, 100, 0])
@pytest.mark.parametrize("entropy", ["none", "value", "gradient"])
def test_squares_equal_the_definition_and_change_nothing_else(case, chunk, entropy):
    hidden, weight, targets = case

    def both(squares):
        settings = LogprobSettings(0.7, chunk, entropy, squares)
        outputs = fused_logprobs(hidden, weight, targets, settings)
        total = sum(values.sum() for values in outputs if values.requires_grad)
        return outputs, torch.autograd.grad(total, (hidden, weight))

    (*plain, squares), gradients = both(True)
    expected = torch.softmax(hidden @ weight.T / 0.7, dim=1).square().sum(1)
    torch.testing.assert_close(squares, expected.detach(), rtol=1e-10, atol=1e-12)
    assert [values.requires_grad for values in plain] == [True, entropy == "gradient"][: len(plain)]
    assert not squares.requires_grad
    without, expected = both(False)
    for ours, theirs in zip((*plain, *gradients), (*without, *expected), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("chunk", [1, 3, 7, 100, 0])
@pytest.mark.parametrize("squares", [False, True])
def test_certainty_is_the_kl_of_the_uniform_distribution_and_changes_nothing_else(
    case, chunk, squares
):
    hidden, weight, targets = case

    def both(certainty):
        settings = LogprobSettings(0.7, chunk, "value", squares, certainty)
        outputs = fused_logprobs(hidden, weight, targets, settings)
        return outputs, torch.autograd.grad(outputs[0].sum(), (hidden, weight))

    (*plain, certainty), gradients = both(True)
    log_p = torch.log_softmax(hidden.detach() @ weight.detach().T / 0.7, dim=1)
    uniform = torch.full_like(log_p, 1 / VOCAB)
    expected = torch.nn.functional.kl_div(log_p, uniform, reduction="none").sum(1)
    torch.testing.assert_close(certainty, expected, rtol=1e-10, atol=1e-12)
    assert not certainty.requires_grad
    without, expected = both(False)
    for ours, theirs in zip((*plain, *gradients), (*without, *expected), strict=True):
        assert torch.equal(ours, theirs)


def test_entropy_as_a_value_changes_no_gradient(case):
    hidden, weight, targets = case
    (plain,) = fused_logprobs(hidden, weight, targets, LogprobSettings())
    valued, entropy = fused_logprobs(hidden, weight, targets, LogprobSettings(entropy="value"))
    torch.testing.assert_close(entropy, token_logprobs(hidden @ weight.T, targets)[1].detach())
    one, other = (torch.autograd.grad(x.sum(), (hidden, weight)) for x in (plain, valued))
    torch.testing.assert_close(one, other)


def test_large_logits_stay_finite():
    hidden = torch.full((2, 1), 300.0, requires_grad=True)
    weight = torch.tensor([[1.0], [-1.0], [0.5]], requires_grad=True)
    settings = LogprobSettings(chunk_tokens=1, entropy="gradient")
    logprobs, entropy = fused_logprobs(hidden, weight, torch.tensor([0, 1]), settings)
    torch.testing.assert_close(logprobs, torch.tensor([0.0, -600.0]))
    torch.testing.assert_close(entropy, torch.zeros(2))
    (logprobs.sum() + entropy.sum()).backward()
    assert hidden.grad.isfinite().all()
    assert weight.grad.isfinite().all()


def test_autocast_is_close_and_returns_float32(case):
    hidden, weight, targets = (
        x.detach().float().requires_grad_() if x.is_floating_point() else x for x in case
    )
    expected = token_logprobs(hidden @ weight.T, targets)[0]
    with torch.autocast("cpu", torch.bfloat16):
        (got,) = fused_logprobs(hidden, weight, targets, LogprobSettings(chunk_tokens=4))
    assert got.dtype == torch.float32
    assert 0 < (got - expected).abs().max() < 0.1
    ours = torch.autograd.grad(got.sum(), (hidden, weight))
    theirs = torch.autograd.grad(expected.sum(), (hidden, weight))
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == torch.float32
        assert (a - b).norm() / b.norm() < 0.02


def test_the_full_logits_never_exist(peak_bytes):
    hidden = torch.randn(400, 4, requires_grad=True)
    weight = torch.randn(300, 4, requires_grad=True)
    settings = LogprobSettings(chunk_tokens=10, entropy="gradient")
    with peak_bytes() as memory:
        logprobs, entropy = fused_logprobs(hidden, weight, torch.zeros(400).long(), settings)
        (logprobs.sum() + entropy.sum()).backward()
    assert memory.peak < 400 * 300 * 4 / 4
