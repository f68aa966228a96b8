"""A process reward model is the engine under a language model's head and the outcomes."""

import pytest
import torch
from padded_reference import assert_gradients, padded_logprobs

from ppojob_api.v1alpha1.training import OptimizerSpec, TrainingSpec
from ppojob_trainer.engine.fused_logprobs import LogprobSettings
from ppojob_trainer.engine.head import PolicyHead
from ppojob_trainer.engine.train_engine import TrainEngine
from ppojob_trainer.engine.value_objective import OutcomeObjective
from ppojob_trainer.metrics.pass_statistics import step_statistics

GOAL = OutcomeObjective(beta=0.5)


def with_outcomes(rows):
    """Every row has one, at all of its tokens; a third of a right answer is one too."""
    rows.critic_ref_logprobs = -3.0 * torch.rand(rows.num_tokens)
    outcomes = torch.tensor([0.0, 1.0, 1 / 3]).repeat(rows.num_rows)[: rows.num_rows]
    rows.outcomes = outcomes.repeat_interleave(rows.lengths)
    return rows, outcomes


@pytest.mark.parametrize("budget", [25, 10_000])
def test_the_gradient_is_that_of_the_padded_loss(make_model, make_rows, budget):
    rows, outcomes = with_outcomes(make_rows())
    rows.mask[: int(rows.lengths[0])] = False  # a row without a trained token is none of them
    model = make_model()
    ratios = (padded_logprobs(model, rows)[0] - rows.critic_ref_logprobs) * rows.mask
    likely = torch.stack([0.5 * row.sum() for row in ratios.split(rows.lengths.tolist())]).sigmoid()
    losses = -(outcomes * likely.log() + (1 - outcomes) * (1 - likely).log())
    is_trained = torch.tensor([row.any() for row in rows.mask.split(rows.lengths.tolist())])
    loss = losses[is_trained].mean()
    ours = make_model()
    training = TrainingSpec(autocast="none", micro_batch_tokens=budget)
    head = PolicyHead(LogprobSettings(chunk_tokens=8))
    engine = TrainEngine(ours, head, training, OptimizerSpec(gradient_clip=0.0), 100)
    stats = step_statistics([engine.update(rows, GOAL)])
    assert_gradients(ours, model, loss, 1e-5)
    assert stats["reward_model/dpo_loss"] == pytest.approx(loss.item(), rel=1e-5)
    own = ("dpo_loss", "grad_norm", "lr", "skipped")
    assert stats.keys() == {f"reward_model/{name}" for name in own}


def test_parts_add_up_to_the_mini_batch(make_rows, parts_add_up):
    rows, _ = with_outcomes(make_rows(groups=4))
    logprobs = (-2.0 * torch.rand(rows.num_tokens)).requires_grad_()
    parts_add_up(GOAL, (logprobs,), rows)
