import pytest
import torch
from padded_reference import padded_logits, relative_difference
from torch import Tensor

from ppojob_api.v1alpha1.algorithm import AlgorithmSpec, KlSpec
from ppojob_api.v1alpha1.training import OptimizerSpec, TrainingSpec
from ppojob_trainer.engine import fused_logprobs as module
from ppojob_trainer.engine.forward_engine import ForwardEngine
from ppojob_trainer.engine.full_kl import HeadWithKl, full_kl
from ppojob_trainer.engine.fused_logprobs import LogprobSettings
from ppojob_trainer.engine.head import LastStates, PolicyHead
from ppojob_trainer.engine.policy_objective import PolicyObjective
from ppojob_trainer.engine.train_engine import TrainEngine
from ppojob_trainer.metrics.pass_statistics import step_statistics

TOKENS, VOCAB = 23, 41
HEAD = PolicyHead(LogprobSettings(0.9, 8, "value"))
TRAINING = TrainingSpec(autocast="none", micro_batch_tokens=25)
SPEC = AlgorithmSpec(
    type="grpo",
    prompts_per_step=3,
    samples_per_prompt=3,
    kl=KlSpec(in_="loss", estimator="full", coefficient=0.7),
)


@pytest.fixture
def case() -> tuple[Tensor, Tensor, LastStates]:
    torch.manual_seed(3)

    def draw(rows: int, size: int) -> Tensor:
        return torch.randn(rows, size, dtype=torch.float64)

    hidden, weight = draw(TOKENS, 8).requires_grad_(), draw(VOCAB, 8).requires_grad_()
    return hidden, weight, LastStates(draw(TOKENS, 5), draw(VOCAB, 5))


def literal_kl(logits: list[list[float]], ref_logits: list[list[float]]) -> Tensor:
    """Σ p log (p / r), token by token."""
    values = []
    for z, y in zip(logits, ref_logits, strict=True):
        p, r = torch.tensor(z).double().softmax(0), torch.tensor(y).double().softmax(0)
        values.append(sum(a * (a / b).log() for a, b in zip(p, r, strict=True)))
    return torch.stack(values)


@pytest.mark.parametrize("chunk", [1, 7, 100, 0])
@pytest.mark.parametrize("block", [1, 5, 4096])
@pytest.mark.parametrize(("temperature", "cap"), [(1.0, None), (0.7, None), (0.7, 2.0)])
def test_equals_the_definition_with_gradients(case, chunk, block, temperature, cap, monkeypatch):
    monkeypatch.setattr(module, "TOKEN_BLOCK", block)
    hidden, weight, reference = case
    both = hidden @ weight.T, reference.hidden @ reference.weight.T
    if cap is not None:
        both = tuple(cap * torch.tanh(logits / cap) for logits in both)
    z, y = (logits / temperature for logits in both)
    expected = (z.softmax(1) * (z.log_softmax(1) - y.log_softmax(1))).sum(1)
    got = full_kl(hidden, weight, reference, LogprobSettings(temperature, chunk, cap=cap))
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(got.detach(), literal_kl(z.tolist(), y.tolist()), atol=1e-5, rtol=0)
    factors = torch.randn(TOKENS, dtype=torch.float64)
    ours, theirs = (
        torch.autograd.grad((factors * kl).sum(), (hidden, weight)) for kl in (got, expected)
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_the_same_model_has_no_distance_and_no_gradient(case):
    hidden, weight, _ = case
    same = LastStates(hidden.detach().float(), weight.detach().float())
    hidden, weight = (x.clone().requires_grad_() for x in same)
    kl = full_kl(hidden, weight, same, LogprobSettings(chunk_tokens=4))
    assert torch.equal(kl, torch.zeros(TOKENS))
    for gradient in torch.autograd.grad(kl.sum(), (hidden, weight)):
        assert torch.equal(gradient, torch.zeros_like(gradient))


def test_autocast_is_close_and_returns_float32(case):
    hidden, weight = (x.detach().float().requires_grad_() for x in case[:2])
    reference = LastStates(*(x.float() for x in case[2]))
    settings = LogprobSettings(chunk_tokens=4)
    expected = full_kl(hidden, weight, reference, settings)
    with torch.autocast("cpu", torch.bfloat16):
        got = full_kl(hidden, weight, reference, settings)
    assert got.dtype == torch.float32
    assert 0 < (got - expected).abs().max() < 0.2
    for a, b in zip(
        *(torch.autograd.grad(kl.sum(), (hidden, weight)) for kl in (got, expected)), strict=True
    ):
        assert a.dtype == torch.float32
        assert (a - b).norm() / b.norm() < 0.02


def test_an_update_has_the_gradient_of_the_textbook(make_model, make_rows):
    rows = make_rows()
    ours, theirs, reference = make_model(), make_model(), make_model(tied=False)
    engine = TrainEngine(ours, HEAD, TRAINING, OptimizerSpec(gradient_clip=0.0), 10)
    frozen = ForwardEngine(reference, HEAD, TRAINING)
    measured = engine.update(
        rows, PolicyObjective.of(SPEC), lambda part: HeadWithKl(HEAD, frozen.last_states(part))
    )

    z, y = (
        torch.cat([logits for logits, _ in padded_logits(model, rows)]) / 0.9
        for model in (theirs, reference)
    )
    kl = (z.softmax(1) * (z.log_softmax(1) - y.log_softmax(1))).sum(1)[rows.mask]
    logprobs = z.log_softmax(1).gather(1, rows.response_tokens[:, None])[:, 0]
    ratios = (logprobs - logprobs.detach()).exp()
    loss = -(ratios * rows.advantages)[rows.mask].mean() + 0.7 * kl.mean()
    loss.backward(inputs=list(theirs.parameters()))

    statistics = step_statistics([measured])
    assert statistics["actor/kl_loss"] == pytest.approx(kl.mean().item(), rel=1e-4)
    assert statistics["actor/loss"] == pytest.approx(loss.item(), rel=1e-4)
    found, expected = (
        {name: p.grad for name, p in model.named_parameters()} for model in (ours, theirs)
    )
    assert relative_difference(found, expected) < 1e-4
    assert all(parameter.grad is None for parameter in reference.parameters())
