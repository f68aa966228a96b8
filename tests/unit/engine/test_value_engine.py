"""A critic is the engine under a value head and a value objective."""

from types import SimpleNamespace

import pytest
import torch
import transformers
from family_models import AS_OTHERS, FAMILY_MODELS
from padded_reference import assert_gradients, padded_logits
from tiny_models import TWO_LAYERS, make_model, write_model
from torch.nn import functional as F

from ppojob_api.v1alpha1.algorithm import AlgorithmSpec, LossAggregation
from ppojob_api.v1alpha1.training import OptimizerSpec, TrainingSpec
from ppojob_trainer.engine.attention import use_packed_attention
from ppojob_trainer.engine.forward_engine import packed_pass
from ppojob_trainer.engine.head import ValueHead
from ppojob_trainer.engine.objective import Aggregation, Denominators
from ppojob_trainer.engine.train_engine import TrainEngine
from ppojob_trainer.engine.value_objective import ValueObjective
from ppojob_trainer.metrics.pass_statistics import step_statistics
from ppojob_trainer.models.families import FAMILIES as TABLE
from ppojob_trainer.models.kinds import CRITIC
from ppojob_trainer.models.load import load_model

FAMILIES = {
    "llama": transformers.LlamaForTokenClassification,
    "qwen2": transformers.Qwen2ForTokenClassification,
    "qwen3": transformers.Qwen3ForTokenClassification,
}
MEAN = ValueObjective(0.5, Aggregation("token_mean"))
MODES = LossAggregation.__args__


def make_critic(family: str = "llama") -> transformers.PreTrainedModel:
    sizes = {"vocab_size": 97, "head_dim": 8, **TWO_LAYERS}
    model = make_model(FAMILIES[family], **sizes, num_labels=1, classifier_dropout=0.0)
    with torch.no_grad():
        model.score.bias.fill_(0.25)
    return model


def build(model, **training) -> TrainEngine:
    spec = TrainingSpec(**{"autocast": "none", **training})
    return TrainEngine(model, ValueHead(), spec, OptimizerSpec(gradient_clip=0.0), 100)


def padded_values(model, rows) -> torch.Tensor:
    return torch.cat([logits[:, 0] for logits, _ in padded_logits(model, rows)]) * rows.mask


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_values_equal_the_padded_forward(make_rows, family, share):
    model, rows = make_critic(family), make_rows(groups=4)
    (got,) = build(model, micro_batch_tokens=20, share_prompts=share).predict(rows)
    assert not got.requires_grad
    torch.testing.assert_close(got, padded_values(model, rows).detach(), rtol=0, atol=1e-5)


class Literal:
    """The decoder of a model of transformers, and a product for each label."""

    def __init__(self, model: transformers.PreTrainedModel, weight: torch.Tensor) -> None:
        self.decoder, self.weight = model.base_model, weight
        self.set_attn_implementation = model.set_attn_implementation

    def __call__(self, **inputs: object) -> SimpleNamespace:
        states = self.decoder(**inputs).last_hidden_state
        return SimpleNamespace(logits=F.linear(states, self.weight) + 0.25)


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(one, marks=[pytest.mark.long] * (one in AS_OTHERS))
        for one in FAMILY_MODELS
        if not TABLE[one].is_multimodal
    ],
)
def test_a_critic_of_any_family_is_its_decoder_and_a_product(tmp_path, make_rows, family):
    """Of the folder of a policy; products of experts are none of float64."""
    kind, own = FAMILY_MODELS[family]
    tied = "tie_word_embeddings" not in TABLE[family].supported
    sizes = {"vocab_size": 97, **TWO_LAYERS, **own, "tie_word_embeddings": tied}
    dtype = torch.float32 if TABLE[family].mixture else torch.float64
    plain, rows = make_model(kind, **sizes).to(dtype), make_rows()
    write_model(tmp_path, plain)
    critic = load_model(tmp_path, dtype, kind=CRITIC)
    weight = 0.1 * torch.randn(critic.score.weight.shape, dtype=dtype)
    with torch.no_grad():
        critic.score.weight.copy_(weight)
        critic.score.bias.fill_(0.25)
    use_packed_attention(critic)
    got = packed_pass(critic, ValueHead(), rows).outputs[0]
    expected = padded_values(Literal(plain, weight), rows)
    assert expected.std() > 0.1
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)
    (ours,), (theirs,) = (
        torch.autograd.grad(values.square().sum(), model.get_input_embeddings().weight)
        for values, model in ((got, critic), (expected, plain))
    )
    assert (ours - theirs).norm() < 1e-4 * theirs.norm()


def test_a_value_does_not_know_its_own_token(make_rows):
    rows = make_rows(groups=1, samples=1, longest=9)
    engine = build(make_critic())
    (before,) = engine.predict(rows)
    at = rows.num_tokens - 2
    rows.response_tokens[at] = (rows.response_tokens[at] + 1) % 97
    (after,) = engine.predict(rows)
    assert torch.equal(before[: at + 1], after[: at + 1])
    assert not torch.equal(before[at + 1], after[at + 1])


@pytest.mark.parametrize("share", [True, False])
def test_the_gradient_is_that_of_the_padded_loss(make_rows, share):
    rows, model = make_rows(), make_critic()
    rows.values, rows.returns = torch.randn(2, rows.num_tokens).unbind()
    values = padded_values(model, rows)
    bounded = rows.values + (values - rows.values).clamp(-0.5, 0.5)
    errors = torch.maximum((values - rows.returns).square(), (bounded - rows.returns).square())
    loss = 0.5 * errors[rows.mask].mean()
    ours = make_critic()
    stats = step_statistics(
        [build(ours, micro_batch_tokens=25, share_prompts=share).update(rows, MEAN)]
    )
    assert_gradients(ours, model, loss, 1e-5)
    assert stats["critic/vf_loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert stats["critic/vpred_mean"] == pytest.approx(values[rows.mask].mean().item(), rel=1e-4)
    assert stats.keys() == {
        *("critic/vf_loss", "critic/vf_clipfrac", "critic/vpred_mean"),
        *("critic/grad_norm", "critic/lr", "critic/skipped"),
    }


def test_values_stay_in_float32_under_autocast(make_rows):
    rows = make_rows()
    (cast,) = build(make_critic(), autocast="bfloat16").predict(rows)
    (exact,) = build(make_critic()).predict(rows)
    assert cast.dtype == torch.float32
    assert 0 < (cast - exact).abs().max() < 0.2
    # Few of them are numbers of bfloat16.
    assert (cast.bfloat16().float() != cast).float().mean() > 0.5


def with_values(rows):
    noise = torch.randn(3, rows.num_tokens, generator=torch.Generator().manual_seed(3))
    rows.values, rows.returns = noise[0], noise[1]
    return rows, (noise[0] + noise[2]).requires_grad_()


def test_a_hand_computed_case(make_rows):
    rows, values = with_values(make_rows())
    rows.mask[:] = False
    rows.mask[:3] = True
    rows.values[:3] = torch.tensor([1.0, 1.0, 1.0])
    rows.returns[:3] = torch.tensor([2.0, 2.0, 0.0])
    values = torch.full((rows.num_tokens,), float("nan"))
    values[:3] = torch.tensor([1.25, 1.75, 2.0])
    parts = MEAN((values.requires_grad_(),), rows, Denominators.of(rows))
    # (0.75^2 + 0.5^2 + 2^2) / 2 / 3: inside the clip, held by it, far from the return
    assert parts.loss.item() == pytest.approx(4.8125 / 6)
    assert parts.terms == {"critic/vf_loss": parts.loss.item()}
    assert parts.token_sums == {"critic/vf_clipfrac": 1.0, "critic/vpred_mean": 5.0}
    assert parts.tokens == 3
    (gradient,) = torch.autograd.grad(parts.loss, values)
    assert gradient[:3].tolist() == pytest.approx([-0.25, 0.0, 2 / 3])
    assert not gradient[3:].any()


@pytest.mark.parametrize("mode", MODES)
def test_parts_add_up_to_the_mini_batch(make_rows, parts_add_up, mode):
    rows, values = with_values(make_rows(groups=4))
    parts_add_up(ValueObjective(0.5, Aggregation(mode, 9)), (values,), rows)


def test_it_is_what_the_job_asks_for():
    algorithm = AlgorithmSpec(
        type="ppo",
        prompts_per_step=4,
        samples_per_prompt=1,
        loss_aggregation="sequence_mean_token_sum_norm",
    )
    objective = ValueObjective(0.2, Aggregation.of(algorithm, 32))
    assert objective == ValueObjective(0.2, Aggregation("sequence_mean_token_sum_norm", 32))
    assert objective.area == "critic"
