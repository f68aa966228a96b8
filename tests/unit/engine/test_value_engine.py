"""A critic is the engine under a value head and a value objective."""

import pytest
import torch
from padded_reference import gradients, padded_logits, relative_difference
from tiny_models import TWO_LAYERS, make_model
from transformers import (
    LlamaForTokenClassification,
    PreTrainedModel,
    Qwen2ForTokenClassification,
    Qwen3ForTokenClassification,
)

from ppojob_api.v1alpha1.training import OptimizerSpec, TrainingSpec
from ppojob_trainer.engine.objective import Aggregation
from ppojob_trainer.engine.train_engine import TrainEngine
from ppojob_trainer.engine.value_head import ValueHead
from ppojob_trainer.engine.value_objective import ValueObjective
from ppojob_trainer.metrics.pass_statistics import step_statistics

FAMILIES = {
    "llama": LlamaForTokenClassification,
    "qwen2": Qwen2ForTokenClassification,
    "qwen3": Qwen3ForTokenClassification,
}
MEAN = ValueObjective(0.5, Aggregation("token_mean"))


def make_critic(family: str = "llama") -> PreTrainedModel:
    sizes = {"vocab_size": 97, "head_dim": 8, **TWO_LAYERS}
    model = make_model(FAMILIES[family], **sizes, num_labels=1, classifier_dropout=0.0)
    with torch.no_grad():
        model.score.bias.fill_(0.25)
    return model


def build(model, *, rate: float = 1e-3, clip: float = 0.0, **training) -> TrainEngine:
    return TrainEngine(
        model,
        ValueHead(),
        TrainingSpec(**{"autocast": "none", **training}),
        OptimizerSpec(learning_rate=rate, gradient_clip=clip),
        total_steps=100,
    )


def padded_values(model, rows) -> torch.Tensor:
    return torch.cat([logits[:, 0] for logits, _ in padded_logits(model, rows)]) * rows.mask


def with_targets(rows, *, seed: int = 5):
    noise = torch.randn(2, rows.num_tokens, generator=torch.Generator().manual_seed(seed))
    rows.values, rows.returns = noise[0], noise[1]
    return rows


def gradient(model, rows, goal, **training) -> dict[str, torch.Tensor]:
    build(model, **training).update(rows, goal)
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_values_equal_the_padded_forward(make_rows, family, share):
    model, rows = make_critic(family), make_rows(groups=4)
    (got,) = build(model, micro_batch_tokens=20, share_prompts=share).predict(rows)
    assert not got.requires_grad
    torch.testing.assert_close(got, padded_values(model, rows).detach(), rtol=0, atol=1e-5)


def test_a_value_does_not_know_its_own_token(make_rows):
    rows = make_rows(groups=1, samples=1, longest=9)
    engine = build(make_critic())
    (before,) = engine.predict(rows)
    at = rows.num_tokens - 2
    rows.response_tokens[at] = (rows.response_tokens[at] + 1) % 97
    (after,) = engine.predict(rows)
    assert torch.equal(before[: at + 1], after[: at + 1])
    assert not torch.equal(before[at + 1], after[at + 1])


@pytest.mark.parametrize("mode", ["token_mean", "sequence_mean_token_mean"])
@pytest.mark.parametrize(
    "training",
    [
        {"micro_batch_tokens": 1},
        {"micro_batch_tokens": 25},
        {"share_prompts": False, "micro_batch_tokens": 40},
        {"activation_checkpointing": True},
        {"skip_zero_gradient_groups": False},
    ],
    ids=str,
)
def test_how_it_is_computed_changes_no_gradient(make_rows, training, mode):
    rows = with_targets(make_rows(groups=4))
    rows.mask[rows.token_index(torch.arange(3, 6))] = False
    goal = ValueObjective(0.5, Aggregation(mode))
    expected = gradient(make_critic(), rows, goal)
    assert relative_difference(gradient(make_critic(), rows, goal, **training), expected) < 1e-5


def test_the_gradient_is_that_of_the_padded_loss(make_rows):
    rows, model = with_targets(make_rows()), make_critic()
    values = padded_values(model, rows)
    bounded = rows.values + (values - rows.values).clamp(-0.5, 0.5)
    errors = torch.maximum((values - rows.returns).square(), (bounded - rows.returns).square())
    loss = 0.5 * errors[rows.mask].mean()
    expected = gradients(model, loss)
    ours = make_critic()
    stats = step_statistics([build(ours, micro_batch_tokens=25).update(rows, MEAN)])
    got = {name: parameter.grad for name, parameter in ours.named_parameters()}
    assert relative_difference(got, expected) < 1e-5
    assert stats["critic/vf_loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert stats["critic/vpred_mean"] == pytest.approx(values[rows.mask].mean().item(), rel=1e-4)
    assert stats.keys() == {
        *("critic/vf_loss", "critic/vf_clipfrac", "critic/vpred_mean"),
        *("critic/grad_norm", "critic/lr", "critic/skipped"),
    }


def test_it_learns_a_constant(make_rows):
    rows = make_rows()
    rows.returns = torch.full((rows.num_tokens,), 2.0)
    engine = build(make_critic(), rate=1e-2)
    for _ in range(60):
        (rows.values,) = engine.predict(rows)
        stats = step_statistics([engine.update(rows, MEAN)])
    (values,) = engine.predict(rows)
    assert (values - 2.0)[rows.mask].abs().max() < 0.1
    assert stats["critic/vf_loss"] < 1e-3
    assert stats["critic/vf_clipfrac"] == 0.0


def test_values_stay_in_float32_under_autocast(make_rows):
    rows = make_rows()
    (cast,) = build(make_critic(), autocast="bfloat16").predict(rows)
    (exact,) = build(make_critic()).predict(rows)
    assert cast.dtype == torch.float32
    assert 0 < (cast - exact).abs().max() < 0.2
    # Few of them are numbers of bfloat16.
    assert (cast.bfloat16().float() != cast).float().mean() > 0.5
