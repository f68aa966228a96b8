import math

import pytest
import torch
from padded_reference import gradients, padded_logprobs, relative_difference

from ppojob_api.v1alpha1.algorithm import (
    AlgorithmSpec,
    GuidanceSpec,
    LossAggregation,
    PositiveExamplesSpec,
)
from ppojob_api.v1alpha1.policy_loss import LOSSES, CispoSpec, DroSpec, PolicyLossSpec
from ppojob_api.v1alpha1.training import OptimizerSpec, TrainingSpec
from ppojob_trainer.engine.fused_logprobs import LogprobSettings
from ppojob_trainer.engine.head import PolicyHead
from ppojob_trainer.engine.objective import Denominators, LossParts
from ppojob_trainer.engine.policy_objective import GUIDANCE, PolicyObjective
from ppojob_trainer.engine.train_engine import TrainEngine
from ppojob_trainer.metrics.pass_statistics import step_statistics
from ppojob_trainer.rows.experience import Experience

GAMMA = 0.3
UNCLIPPED = PolicyLossSpec(type="cispo", cispo=CispoSpec(clip_high=1_000))
"""As LUFFY's authors train; the gradient is that of the plain ratio."""
GUIDED = [name for name, one in LOSSES.items() if not one.is_of_rows and not one.is_of_sampler]
GUIDED.remove("custom")


def algorithm(**options) -> AlgorithmSpec:
    guidance = GuidanceSpec(samples=1, gamma=GAMMA)
    return AlgorithmSpec(
        type="grpo", prompts_per_step=3, samples_per_prompt=3, guidance=guidance, **options
    )


@pytest.fixture
def guided(make_rows):
    """Rows of which the first of each group is given, whose sampler is said to be sure of it."""

    def make(**sizes: int) -> Experience:
        rows = make_rows(old=True, **sizes)
        rows.given = rows.token_rows % 3 == 0
        rows.rollout_logprobs[rows.given] = 0.0
        return rows

    return make


def outputs_of(rows: Experience, seed: int = 9) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logprobs = rows.old_logprobs + 0.4 * torch.randn(rows.num_tokens, generator=generator)
    entropy = torch.rand(rows.num_tokens, generator=generator)
    return logprobs.clamp(max=-0.01).requires_grad_(), entropy.requires_grad_()


def without_guidance(parts: LossParts) -> dict[str, float]:
    return {name: value for name, value in parts.token_sums.items() if name not in GUIDANCE}


def literal_gradient(rows: Experience, logprobs: torch.Tensor, token: int) -> float:
    """Of one token's loss to its log-probability, by the letters of the paper, unclipped."""
    p, old = (math.exp(one[token].item()) for one in (logprobs, rows.old_logprobs))
    advantage = float(rows.advantages[token])
    if not rows.mask[token]:
        return 0.0
    if rows.given[token]:
        return -advantage * GAMMA * p / (p + GAMMA) ** 2
    return -advantage * p / old


@pytest.mark.parametrize("mode", LossAggregation.__args__)
def test_luffy_by_the_letter(guided, mode):
    rows = guided(groups=4)
    logprobs, entropy = outputs_of(rows)
    spec = algorithm(policy_loss=UNCLIPPED, loss_aggregation=mode)
    objective = PolicyObjective.of(spec, max_response_tokens=9)
    parts = objective((logprobs, entropy), rows, Denominators.of(rows))
    (found,) = torch.autograd.grad(parts.loss, logprobs)
    lengths = rows.lengths.tolist()
    trained = [int(own.sum()) for own in rows.mask.split(lengths)]
    of_row = [count for count, length in zip(trained, lengths, strict=True) for _ in range(length)]
    sequences = sum(count > 0 for count in trained)
    divisors = {
        "token_mean": lambda _: sum(trained),
        "token_sum": lambda _: 1,
        "sequence_mean_token_sum": lambda _: sequences,
        "sequence_mean_token_sum_norm": lambda _: sequences * 9,
        "sequence_mean_token_mean": lambda token: sequences * max(1, of_row[token]),
    }
    expected = [
        literal_gradient(rows, logprobs, token) / divisors[mode](token)
        for token in range(rows.num_tokens)
    ]
    assert found.tolist() == pytest.approx(expected, rel=1e-4, abs=1e-8)
    given = rows.mask & rows.given
    p = logprobs.detach()[given].exp()
    shaped = p / (p + GAMMA)
    loss = -(rows.advantages[given] * shaped)
    expected = dict(zip(GUIDANCE, (loss, shaped, p), strict=True))
    for name, values in expected.items():
        assert parts.token_sums[name] == pytest.approx(values.sum().item(), rel=1e-5)
        assert parts.counts[name] == int(given.sum())


@pytest.mark.parametrize("name", GUIDED)
def test_given_responses_stand_beside_every_loss_of_tokens(guided, parts_add_up, name):
    """A loss has no other say of drawn tokens, and no metric of theirs counts given ones."""
    rows = guided(groups=4)
    dro = DroSpec(beta=0.5) if name == "dro" else None
    loss, sums = PolicyLossSpec(type=name, dro=dro), {"loss_aggregation": "token_sum"}
    spec = algorithm(policy_loss=loss, entropy_coefficient=0.1, **sums)
    objective, outputs = PolicyObjective.of(spec), outputs_of(rows)
    if not name.endswith("_cov"):  # whose choice is a micro-batch's
        parts_add_up(objective, outputs, rows)
    torch.manual_seed(1)  # clip_cov draws some
    parts = objective(outputs, rows, Denominators.of(rows))
    (ours,) = torch.autograd.grad(parts.loss, outputs[0])
    alone = rows.select(range(rows.num_rows))
    alone.mask, alone.given = rows.drawn, None
    plain = PolicyObjective.of(spec.model_copy(update={"guidance": None}))
    torch.manual_seed(1)
    parts_alone = plain(outputs, alone, Denominators.of(alone))
    (theirs,) = torch.autograd.grad(parts_alone.loss, outputs[0])
    torch.testing.assert_close(ours[rows.drawn], theirs[rows.drawn])
    assert ours[rows.mask & rows.given].all()
    assert parts.tokens == parts_alone.tokens < int(rows.mask.sum())
    assert without_guidance(parts) == parts_alone.token_sums


def test_given_responses_are_left_behind_by_nobody(guided):
    """A mask by the distance to the sampler leaves out drawn tokens alone."""
    rows = guided()
    rows.advantages = -rows.advantages.abs()
    outputs = outputs_of(rows)
    objective = PolicyObjective.of(algorithm(off_policy_threshold=1e-6))
    parts = objective(outputs, rows, Denominators.of(rows))
    (gradient,) = torch.autograd.grad(parts.loss, outputs[0])
    assert gradient[rows.mask & rows.given].all()
    assert 0 < parts.token_sums["actor/off_policy_frac"] < int(rows.drawn.sum())


def test_a_mini_batch_without_a_given_response_is_a_plain_one(guided):
    rows = guided()
    rows.given[:] = False
    spec = algorithm(policy_loss=UNCLIPPED)
    told = outputs_of(rows), rows, Denominators.of(rows)
    parts = PolicyObjective.of(spec)(*told)
    plain = PolicyObjective.of(spec.model_copy(update={"guidance": None}))(*told)
    assert parts.loss.item() == plain.loss.item()
    assert without_guidance(parts) == plain.token_sums
    assert parts.counts == dict.fromkeys(GUIDANCE, 0.0)


@pytest.mark.parametrize("budget", [30, 10_000])
def test_the_gradient_of_luffy_is_that_of_a_padded_model(make_model, guided, budget):
    """The first update of a step; right responses are learnt as answers besides, given ones too."""
    ours, theirs = (make_model(dtype=torch.float64) for _ in range(2))
    rows = guided(groups=3)
    rows.old_logprobs = None
    rows.positives = rows.token_rows % 4 == 0
    training = TrainingSpec(autocast="none", logprob_chunk_tokens=8, micro_batch_tokens=budget)
    head = PolicyHead(LogprobSettings(0.7, 8, "value"))
    engine = TrainEngine(ours, head, training, OptimizerSpec(gradient_clip=0.0), 1)
    right = PositiveExamplesSpec(coefficient=0.25)
    measured = engine.update(rows, PolicyObjective.of(algorithm(positive_examples=right)))
    logprobs, _ = padded_logprobs(theirs, rows, temperature=0.7)
    p = logprobs.exp()
    ratio = torch.where(rows.given, p / (p + GAMMA), (logprobs - logprobs.detach()).exp())
    loss = -(ratio * rows.advantages)[rows.mask].mean()
    assert measured.values["actor/pg_loss"] == pytest.approx(loss.item(), rel=1e-6)
    given = rows.mask & rows.given
    prob = p[given].mean().item()
    found = step_statistics([measured])["actor/off_policy_prob"]
    assert found == pytest.approx(prob, rel=1e-6)
    loss = loss - 0.25 * logprobs[rows.mask & rows.positives].mean()
    ours_found = {name: weight.grad for name, weight in ours.named_parameters()}
    assert relative_difference(ours_found, gradients(theirs, loss)) < 1e-6
