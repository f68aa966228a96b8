import pytest
import torch
from lone_role import grpo_spec
from training_cases import GROUPS, SAMPLES

from ppojob_trainer.metrics.pass_statistics import step_statistics
from ppojob_trainer.workers.trained_models import Policy

SPEC = grpo_spec(GROUPS, SAMPLES)


@pytest.fixture
def policy(make_learner) -> Policy:
    learner = make_learner()
    learner.restore(None, [], 10)
    return Policy(SPEC, learner)


def test_the_pass_before_the_updates_measures_every_trained_token(policy, rows):
    rows.mine.rollout_logprobs[:] = -2.0
    told = step_statistics([policy.forward(rows)])
    logprobs, entropy = policy.learner.engine.predict(rows.mine)
    mask = rows.mine.mask
    assert torch.equal(rows.mine.old_logprobs, logprobs)
    expected = {
        "actor/entropy": entropy,
        "training/rollout_probs_diff_mean": (
            logprobs.exp() - rows.mine.rollout_logprobs.exp()
        ).abs(),
        "rollout_corr/kl": rows.mine.rollout_logprobs - logprobs,
    }
    assert told.keys() == expected.keys()
    for name, column in expected.items():
        assert told[name] == pytest.approx(column[mask].mean().item(), rel=1e-5), name
