import pytest
import torch
from padded_reference import assert_gradients, padded_logprobs

from ppojob_api.v1alpha1.algorithm import (
    AlgorithmSpec,
    KlLossSpec,
    KlSpec,
    LossAggregation,
    PositiveExamplesSpec,
)
from ppojob_api.v1alpha1.policy_loss import LOSSES, DroSpec, PolicyLossSpec
from ppojob_api.v1alpha1.training import OptimizerSpec, TrainingSpec
from ppojob_trainer.engine.fused_logprobs import LogprobSettings
from ppojob_trainer.engine.head import PolicyHead
from ppojob_trainer.engine.objective import Denominators
from ppojob_trainer.engine.policy_objective import PolicyObjective
from ppojob_trainer.engine.train_engine import TrainEngine

MODES = LossAggregation.__args__


def algorithm(**options) -> AlgorithmSpec:
    return AlgorithmSpec(type="grpo", prompts_per_step=3, samples_per_prompt=3, **options)


def policy(rows, seed=9):
    generator = torch.Generator().manual_seed(seed)
    logprobs = rows.rollout_logprobs + 0.4 * torch.randn(rows.num_tokens, generator=generator)
    entropy = torch.rand(rows.num_tokens, generator=generator)
    return logprobs.requires_grad_(), entropy.requires_grad_()


def test_the_update_s_own_logprobs_are_the_old_ones_where_there_are_none(make_rows):
    rows = make_rows()
    logprobs, entropy = policy(rows)
    parts = PolicyObjective.of(algorithm())((logprobs, entropy), rows, Denominators.of(rows))
    (gradient,) = torch.autograd.grad(parts.loss, logprobs)
    trained = rows.mask.sum()
    torch.testing.assert_close(gradient, torch.where(rows.mask, -rows.advantages / trained, 0.0))
    assert parts.token_sums["actor/ppo_kl"] == 0.0
    assert parts.token_sums["actor/pg_clipfrac"] == 0.0
    expected = -(rows.advantages * rows.mask).sum() / trained
    assert parts.loss.item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_parts_add_up_to_the_mini_batch(make_rows, parts_add_up, mode):
    rows = make_rows(groups=4, old=True)
    kl = KlSpec(in_="loss", estimator="k3", coefficient=0.2)
    spec = algorithm(loss_aggregation=mode, entropy_coefficient=0.1, kl=kl)
    parts_add_up(PolicyObjective.of(spec, max_response_tokens=9), policy(rows), rows)


def test_rows_without_advantage_stay_where_a_loss_needs_them(make_rows):
    rows = make_rows()
    rows.advantages[:] = 0.0
    rows.mask[:] = True
    for name in ("dro", "clip_cov", "kl_cov", "gvpo", "flowrl"):
        dro = DroSpec(beta=0.5) if name == "dro" else None
        objective = PolicyObjective.of(algorithm(policy_loss=PolicyLossSpec(type=name, dro=dro)))
        assert len(objective.rows_with_gradient(rows)) == 9


def test_what_the_policy_has_left_behind_has_no_loss_and_counts_below_it(make_rows):
    rows = make_rows()
    logprobs, entropy = policy(rows)
    fall = rows.rollout_logprobs - logprobs.detach()
    means = [
        part[kept].mean() if kept.any() else torch.zeros(())
        for part, kept in zip(
            fall.split(rows.lengths.tolist()), rows.mask.split(rows.lengths.tolist()), strict=True
        )
    ]
    threshold = float(torch.stack(means).median().clamp(min=1e-3))
    is_far = (torch.stack(means) > threshold).repeat_interleave(rows.lengths)
    left_out = is_far & (rows.advantages < 0) & rows.mask
    assert 0 < left_out.sum() < rows.mask.sum()
    given = (logprobs, entropy), rows, Denominators.of(rows)
    (plain,) = torch.autograd.grad(PolicyObjective.of(algorithm())(*given).loss, logprobs)
    objective = PolicyObjective.of(algorithm(off_policy_threshold=threshold))
    parts = objective(*given)
    (gradient,) = torch.autograd.grad(parts.loss, logprobs)
    torch.testing.assert_close(gradient, torch.where(left_out, 0.0, plain))
    assert parts.token_sums["actor/off_policy_frac"] == int(left_out.sum())
    assert set(objective.token_names) == parts.token_sums.keys()


def test_entropy_is_a_bonus_and_kl_a_penalty(make_rows):
    rows = make_rows()
    rows.advantages[:] = 0.0
    kl = KlSpec(in_="loss", estimator="k2", coefficient=0.5)
    objective = PolicyObjective.of(algorithm(entropy_coefficient=0.25, kl=kl))
    logprobs, entropy = policy(rows)
    parts = objective((logprobs, entropy), rows, Denominators.of(rows))
    on_logprobs, on_entropy = torch.autograd.grad(parts.loss, (logprobs, entropy))
    trained = rows.mask / rows.mask.sum()
    torch.testing.assert_close(on_entropy, -0.25 * trained)
    distance = (logprobs - rows.ref_logprobs).detach()
    torch.testing.assert_close(on_logprobs, 0.5 * distance * trained)
    told = (distance**2 / 2)[rows.mask].sum().item()
    assert parts.token_sums["actor/kl_loss"] == pytest.approx(told, rel=1e-5)
    # The coefficient of a step wins.
    assert PolicyObjective.of(algorithm(kl=kl), 0.125).kl.coefficient == 0.125


def test_a_kl_in_the_loss_beside_one_in_the_reward(make_rows):
    rows = make_rows()
    rows.advantages[:] = 0.0
    kl = KlSpec(in_="reward", loss_term=KlLossSpec(estimator="k3+", coefficient=0.5))
    # The coefficient of a step is that of the reward.
    objective = PolicyObjective.of(algorithm(kl=kl), 7.0)
    logprobs, entropy = policy(rows)
    parts = objective((logprobs, entropy), rows, Denominators.of(rows))
    (gradient,) = torch.autograd.grad(parts.loss, logprobs)
    trained = rows.mask / rows.mask.sum()
    torch.testing.assert_close(gradient, 0.5 * (logprobs - rows.ref_logprobs).detach() * trained)
    d = (rows.ref_logprobs - logprobs.detach())[rows.mask]
    assert parts.token_sums["actor/kl_loss"] == pytest.approx(
        float((d.exp() - d - 1).clamp(max=10).sum())
    )


@pytest.mark.parametrize(("estimator", "loss"), [("k1", "clip"), ("k3", "clip"), ("k3", "bypass")])
def test_an_unbiased_kl_has_the_mean_and_the_gradient_of_the_kl(estimator, loss, make_rows):
    """Every token of a vocabulary is drawn as often by an old policy that likes all the same."""
    rows = make_rows(groups=1, samples=1, longest=9)
    size = rows.num_tokens
    assert size > 2
    rows.mask[:], rows.advantages[:] = True, 0.0
    rows.rollout_logprobs = torch.full((size,), 1 / size).log()
    rows.old_logprobs = None if loss == "bypass" else rows.rollout_logprobs
    torch.manual_seed(0)
    rows.ref_logprobs = (0.5 * torch.randn(size)).log_softmax(0)  # near enough for k3's limit
    logits = (0.5 * torch.randn(size)).requires_grad_()
    logprobs = logits.log_softmax(0)
    kl = KlSpec(in_="loss", estimator=estimator, coefficient=1.0, unbiased=True)
    objective = PolicyObjective.of(algorithm(kl=kl, policy_loss=PolicyLossSpec(type=loss)))
    parts = objective((logprobs, torch.zeros(size)), rows, Denominators.of(rows))
    expected = (logprobs.exp() * (logprobs - rows.ref_logprobs)).sum()
    assert parts.token_sums["actor/kl_loss"] / size == pytest.approx(expected.item(), rel=1e-4)
    ours, theirs = (
        torch.autograd.grad(x, logits, retain_graph=True) for x in (parts.loss, expected)
    )
    torch.testing.assert_close(ours, theirs)


def test_only_rows_without_advantage_or_without_trained_tokens_have_no_gradient(make_rows):
    rows = make_rows()
    rows.advantages[rows.token_index(torch.tensor([0, 1, 2, 4]))] = 0.0
    rows.mask[:] = True
    rows.mask[rows.token_index(torch.tensor([8]))] = False
    assert PolicyObjective.of(algorithm()).rows_with_gradient(rows).tolist() == [3, 5, 6, 7]
    with_bonus = PolicyObjective.of(algorithm(entropy_coefficient=0.1))
    assert with_bonus.rows_with_gradient(rows).tolist() == list(range(8))
    with_kl = PolicyObjective.of(algorithm(kl=KlSpec(in_="loss", estimator="k3")))
    assert with_kl.rows_with_gradient(rows).tolist() == list(range(8))
    assert Denominators.of(rows) == Denominators(rows.num_tokens - int(rows.lengths[8]), 8)


POSITIVE = PositiveExamplesSpec(coefficient=0.25)


@pytest.mark.parametrize(
    "name", [name for name in LOSSES if not name.endswith("_cov") and name != "custom"]
)
def test_right_responses_are_learnt_beside_every_loss(make_rows, parts_add_up, name):
    """Whose parts add up to the mini-batch, too."""
    rows = make_rows(groups=4, old=True)
    rows.positives = rows.token_rows % 5 == 2
    dro = DroSpec(beta=0.5) if name == "dro" else None
    spec = algorithm(
        policy_loss=PolicyLossSpec(type=name, dro=dro),
        loss_aggregation="sequence_mean_token_mean",
        entropy_coefficient=0.1,
        positive_examples=POSITIVE,
    )
    objective, outputs = PolicyObjective.of(spec), policy(rows)
    if name == "flowrl":
        outputs += (torch.linspace(-1.0, 1.0, rows.num_tokens).requires_grad_(),)  # log Z
    parts_add_up(objective, outputs, rows, (3, 6) if spec.whole_groups else (5, 6))
    given = outputs, rows, Denominators.of(rows)
    plain = PolicyObjective.of(spec.model_copy(update={"positive_examples": None}))(*given)
    parts = objective(*given)
    right = rows.mask & (rows.token_rows % 5 == 2)
    likelihood = -outputs[0][right].mean().item()
    assert parts.terms["actor/positive_loss"] == pytest.approx(likelihood, rel=1e-5)
    assert parts.loss.item() == pytest.approx(plain.loss.item() + 0.25 * likelihood, rel=1e-5)
    ours, theirs = (
        torch.autograd.grad(one.loss, outputs[0], retain_graph=True)[0] for one in (parts, plain)
    )
    torch.testing.assert_close(ours - theirs, -0.25 * right / right.sum())


def test_a_right_response_without_advantage_has_a_gradient(make_rows):
    rows = make_rows()
    rows.advantages[:] = 0.0
    rows.mask[:] = True
    rows.mask[rows.token_index(torch.tensor([8]))] = False
    rows.positives = torch.isin(rows.token_rows, torch.tensor([1, 4, 8]))
    objective = PolicyObjective.of(algorithm(positive_examples=POSITIVE))
    assert objective.rows_with_gradient(rows).tolist() == [1, 4]
    tokens = int(rows.lengths[[1, 4]].sum())
    assert Denominators.of(rows) == Denominators(rows.mask.sum(), 8, tokens)


def test_a_mini_batch_without_a_right_response_has_no_such_loss(make_rows):
    rows = make_rows()
    rows.positives = torch.zeros_like(rows.mask)
    given = policy(rows), rows, Denominators.of(rows)
    parts = PolicyObjective.of(algorithm(positive_examples=POSITIVE))(*given)
    assert parts.terms["actor/positive_loss"] == 0.0
    assert parts.loss.item() == PolicyObjective.of(algorithm())(*given).loss.item()


@pytest.mark.parametrize("budget", [30, 10_000])
def test_the_gradient_of_vapo_is_that_of_a_padded_model(make_model, make_rows, budget):
    """The first update of a step; one group has no advantage, and one right response."""
    ours, theirs = (make_model(dtype=torch.float64) for _ in range(2))
    rows = make_rows(groups=3)
    rows.advantages[rows.token_rows < 3] = 0.0
    rows.positives = torch.isin(rows.token_rows, torch.tensor([1, 5]))
    training = TrainingSpec(autocast="none", logprob_chunk_tokens=8, micro_batch_tokens=budget)
    head = PolicyHead(LogprobSettings(0.7, 8, "value"))
    engine = TrainEngine(ours, head, training, OptimizerSpec(gradient_clip=0.0), 1)
    engine.update(rows, PolicyObjective.of(algorithm(positive_examples=POSITIVE)))
    logprobs, _ = padded_logprobs(theirs, rows, temperature=0.7)
    surrogate = ((logprobs - logprobs.detach()).exp() * rows.advantages)[rows.mask].mean()
    loss = -surrogate - 0.25 * logprobs[rows.mask & rows.positives].mean()
    assert_gradients(ours, theirs, loss, 1e-6)
