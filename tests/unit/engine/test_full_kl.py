from dataclasses import replace

import pytest
import torch
from padded_reference import assert_gradients, padded_logits
from torch import Tensor

from ppojob_api.v1alpha1.algorithm import AlgorithmSpec, KlSpec
from ppojob_api.v1alpha1.training import OptimizerSpec, TrainingSpec
from ppojob_trainer.engine import fused_logprobs as module
from ppojob_trainer.engine.forward_engine import ForwardEngine
from ppojob_trainer.engine.full_kl import Divergence, HeadWithKl, full_kl
from ppojob_trainer.engine.fused_logprobs import LogprobSettings
from ppojob_trainer.engine.head import LastStates, PolicyHead
from ppojob_trainer.engine.objective import Aggregation
from ppojob_trainer.engine.policy_objective import DistillationObjective, PolicyObjective
from ppojob_trainer.engine.train_engine import TrainEngine
from ppojob_trainer.metrics.pass_statistics import step_statistics

TOKENS, VOCAB = 23, 41
HEAD = PolicyHead(LogprobSettings(0.9, 8, "value"))
DIVERGENCES = [
    *(Divergence(name) for name in ("reverse_kl", "forward_kl", "jsd")),
    Divergence("jsd", 0.1),
    Divergence("jsd", 0.9),
]
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


def literal(divergence: Divergence, z: Tensor, y: Tensor) -> Tensor:
    """Σ p log (p / q) of whole softmaxes, as the paper has it, for autograd; (N, V) each."""
    p, r, beta = z.softmax(1), y.softmax(1), divergence.beta

    def kl(first: Tensor, second: Tensor) -> Tensor:
        return (first * (first / second).log()).sum(1)

    m = beta * r + (1 - beta) * p
    between = beta * kl(r, m) + (1 - beta) * kl(p, m)
    return {"reverse_kl": kl(p, r), "forward_kl": kl(r, p), "jsd": between}[divergence.name]


@pytest.mark.parametrize("divergence", DIVERGENCES, ids=str)
@pytest.mark.parametrize("chunk", [1, 7, 0])
@pytest.mark.parametrize("block", [5, 4096])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_equals_the_definition_with_gradients(
    case, divergence, chunk, block, temperature, monkeypatch
):
    """Of a reference with rows of padding, too, of which nobody knows anything; of other scale."""
    monkeypatch.setattr(module, "TOKEN_BLOCK", block)
    hidden, weight, reference = case
    z = 2.0 * (hidden @ weight.T / 2.0).tanh() / temperature
    y = 3.0 * (reference.hidden @ reference.weight.T / 3.0).tanh() / 1.5
    expected = literal(divergence, z, y)
    padding = torch.full((6, reference.weight.shape[1]), torch.nan, dtype=torch.float64)
    theirs = LogprobSettings(1.5, cap=3.0)
    padded = LastStates(reference.hidden, torch.cat([reference.weight, padding]), theirs)
    settings = LogprobSettings(temperature, chunk, cap=2.0)
    got = full_kl(hidden, weight, padded, settings, divergence)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)
    assert got.min() > 0
    factors = torch.randn(TOKENS, dtype=torch.float64)
    ours, theirs = (
        torch.autograd.grad((factors * kl).sum(), (hidden, weight)) for kl in (got, expected)
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_models_that_differ_beyond_all_numbers_have_numbers(case):
    hidden, weight, reference = (case[0] * 500, case[1], LastStates(case[2][0] * 500, case[2][1]))
    for divergence in DIVERGENCES:
        got = full_kl(hidden, weight, reference, LogprobSettings(), divergence)
        assert got.isfinite().all()
        (gradient,) = torch.autograd.grad(got.sum(), weight)
        assert gradient.isfinite().all()


@pytest.mark.parametrize("name", ["reverse_kl", "forward_kl"])
def test_the_same_model_has_no_distance_and_no_gradient(case, name):
    hidden, weight, _ = case
    same = LastStates(hidden.detach().float(), weight.detach().float())
    hidden, weight = (x.clone().requires_grad_() for x in same[:2])
    kl = full_kl(hidden, weight, same, LogprobSettings(chunk_tokens=4), Divergence(name))
    assert torch.equal(kl, torch.zeros(TOKENS))
    for gradient in torch.autograd.grad(kl.sum(), (hidden, weight)):
        assert torch.equal(gradient, torch.zeros_like(gradient))


@pytest.mark.parametrize("divergence", DIVERGENCES[:3], ids=str)
def test_autocast_is_close_and_returns_float32(case, divergence):
    hidden, weight = (x.detach().float().requires_grad_() for x in case[:2])
    reference = LastStates(*(x.float() for x in case[2][:2]))
    settings = LogprobSettings(chunk_tokens=4)
    expected = full_kl(hidden, weight, reference, settings, divergence)
    with torch.autocast("cpu", torch.bfloat16):
        got = full_kl(hidden, weight, reference, settings, divergence)
    assert got.dtype == torch.float32
    assert 0 < (got - expected).abs().max() < 0.2
    for a, b in zip(
        *(torch.autograd.grad(kl.sum(), (hidden, weight)) for kl in (got, expected)), strict=True
    ):
        assert a.dtype == torch.float32
        assert (a - b).norm() / b.norm() < 0.02


@pytest.mark.parametrize("family", ["llama", "phi"])  # whose output layer has a bias
def test_an_update_has_the_gradient_of_the_textbook(make_model, make_rows, family):
    rows = make_rows()
    ours, theirs, reference = (make_model(family, tied=tied) for tied in (True, True, False))
    for model in (ours, theirs, reference):
        if (bias := model.lm_head.bias) is not None:
            bias.data.copy_(torch.linspace(-1.0, 1.0, len(bias)))
    engine = TrainEngine(ours, HEAD, TRAINING, OptimizerSpec(gradient_clip=0.0), 10)
    frozen = ForwardEngine(reference, HEAD, TRAINING)
    measured = engine.update(
        rows, PolicyObjective.of(SPEC), [lambda part: HeadWithKl(HEAD, frozen.last_states(part))]
    )

    z, y = (
        torch.cat([logits for logits, _ in padded_logits(model, rows)]) / 0.9
        for model in (theirs, reference)
    )
    kl = (z.softmax(1) * (z.log_softmax(1) - y.log_softmax(1))).sum(1)[rows.mask]
    logprobs = z.log_softmax(1).gather(1, rows.response_tokens[:, None])[:, 0]
    ratios = (logprobs - logprobs.detach()).exp()
    loss = -(ratios * rows.advantages)[rows.mask].mean() + 0.7 * kl.mean()

    statistics = step_statistics([measured])
    assert statistics["actor/kl_loss"] == pytest.approx(kl.mean().item(), rel=1e-4)
    assert statistics["actor/loss"] == pytest.approx(loss.item(), rel=1e-4)
    assert_gradients(ours, theirs, loss, 1e-4)
    assert all(parameter.grad is None for parameter in reference.parameters())


def test_of_several_teachers_each_is_compared_with_at_its_own_rows(make_model, make_rows):
    """Rows of one are scattered among those of the other."""
    rows = make_rows()
    rows.teachers = [number % 2 for number in range(rows.num_groups)]
    ours, theirs = make_model(), make_model()
    teachers = [make_model(tied=False), make_model(initializer_range=0.3)]
    z, *of_teachers = (
        torch.cat([logits for logits, _ in padded_logits(model, rows)]) / 0.9
        for model in (theirs, *teachers)
    )
    second = torch.tensor(rows.teachers, dtype=torch.bool)[rows.row_groups][rows.token_rows]
    y = torch.where(second[:, None], of_teachers[1], of_teachers[0])
    loss = literal(DIVERGENCES[1], z, y)[rows.mask].mean()

    engine = TrainEngine(ours, HEAD, TRAINING, OptimizerSpec(gradient_clip=0.0), 10)
    frozen = [ForwardEngine(teacher, HEAD, TRAINING) for teacher in teachers]
    measured = engine.update(
        rows,
        DistillationObjective(Aggregation("token_mean")),
        [
            lambda part, one=one: HeadWithKl(HEAD, one.last_states(part), DIVERGENCES[1])
            for one in frozen
        ],
    )
    assert step_statistics([measured])["distillation/loss"] == pytest.approx(loss.item(), rel=1e-4)
    assert_gradients(ours, theirs, loss, 1e-4)


@pytest.mark.parametrize("is_bounded", [False, True])
@pytest.mark.parametrize("divergence", DIVERGENCES[1:3], ids=str)
def test_an_update_by_a_teacher_is_that_of_the_textbook(
    make_model, make_rows, divergence, is_bounded
):
    """The mean is over trained tokens; a teacher may read other prompts (arXiv:2601.18734)."""
    rows = make_rows()
    read = rows
    if is_bounded:
        others = (
            make_rows(seed=2).prompts * 3
        )  # rows of a group with prompts of their own, some alike
        rows.teacher_prompts = [others[row % 4] for row in range(rows.num_rows)]
        read = replace(rows, prompts=rows.teacher_prompts, row_groups=torch.arange(rows.num_rows))
    rows.mask[: int(rows.lengths[0])] = False
    ours, theirs, teacher = make_model(), make_model(), make_model(tied=False)
    z, y = (
        torch.cat([logits for logits, _ in padded_logits(model, seen)]) / 0.9
        for model, seen in ((theirs, rows), (teacher, read))
    )
    distances = literal(divergence, z, y)[rows.mask]
    ascending = distances.detach().sort().values
    at = int(ascending.diff()[5:-5].argmax()) + 5  # where no rounding reaches over the limit
    limit = ascending[at : at + 2].mean().item() if is_bounded else None
    loss = distances.clamp(max=limit).mean() if is_bounded else distances.mean()

    engine = TrainEngine(ours, HEAD, TRAINING, OptimizerSpec(gradient_clip=0.0), 10)
    frozen = ForwardEngine(teacher, HEAD, TRAINING)
    measured = engine.update(
        rows,
        DistillationObjective(Aggregation("token_mean"), limit),
        [lambda part: HeadWithKl(HEAD, frozen.last_states(part), divergence)],
    )
    statistics = step_statistics([measured])
    assert statistics["actor/loss"] == pytest.approx(loss.item(), rel=1e-4)
    assert statistics["distillation/loss"] == pytest.approx(distances.mean().item(), rel=1e-4)
    entropy = -(z.softmax(1) * z.log_softmax(1)).sum(1)[rows.mask].mean()
    assert statistics["actor/entropy"] == pytest.approx(entropy.item(), rel=1e-4)
    assert_gradients(ours, theirs, loss, 1e-4)
