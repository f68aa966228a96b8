import math

import pytest
import torch
from literal_comparison import compare_penalized_gae
from ragged_batches import Batch, for_any_batch

from ppojob_trainer.algorithms import gae as module
from ppojob_trainer.algorithms import kl
from ppojob_trainer.algorithms.gae import gae

# Two responses of 3 and 2 tokens; the middle token of the first is tool output.
LENGTHS = torch.tensor([3, 2])
MASK = torch.tensor([True, False, True, True, True])
REWARDS = torch.tensor([0.0, 0.0, 1.0, 0.5, -1.0], dtype=torch.float64)
VALUES = torch.tensor([0.5, 7.0, 0.25, 0.125, -0.5], dtype=torch.float64)
ALL = torch.ones(5, dtype=torch.bool)

# gamma 0.5, lambda 0.5, from the back:
# row 0: delta 1 - 0.25 = 0.75; then 0 + 0.5 * 0.25 - 0.5 = -0.375, plus 0.25 * 0.75 = -0.1875
# row 1: delta -1 + 0.5 = -0.5; then 0.5 + 0.5 * -0.5 - 0.125 = 0.125, plus 0.25 * -0.5 = 0
BY_HAND = [-0.1875, 0.0, 0.75, 0.0, -0.5]
# mean 0.015625; squares 0.03515625 + 0.5625 + 0 + 0.25 = 0.84765625 minus 4 * 0.015625^2 leaves
# 0.84667969; / 3 = 0.28222656; root 0.53125000
MEAN, DEVIATION = 0.015625, 0.53125


@for_any_batch
def test_equal_to_the_literal_form_with_kl_in_the_reward(batch: Batch):
    compare_penalized_gae(module, kl, batch, torch.float64)


def test_by_hand():
    result = gae(REWARDS, VALUES, MASK, LENGTHS, gamma=0.5, lam=0.5)
    returns = [a + v if m else 0.0 for a, v, m in zip(BY_HAND, VALUES.tolist(), MASK, strict=True)]
    assert result.returns.tolist() == pytest.approx(returns, abs=1e-12)
    whitened = [(a - MEAN) / DEVIATION if m else 0.0 for a, m in zip(BY_HAND, MASK, strict=True)]
    assert result.advantages.tolist() == pytest.approx(whitened, abs=1e-7)


def test_without_discount_returns_are_the_rewards_to_come():
    # Whatever the critic says: its values cancel where lambda is 1.
    result = gae(REWARDS, VALUES, ALL, LENGTHS)
    assert result.returns.tolist() == pytest.approx([1.0, 1.0, 1.0, -0.5, -1.0])


def test_lambda_0_is_the_error_of_one_step():
    result = gae(REWARDS, VALUES, ALL, LENGTHS, gamma=1.0, lam=0.0)
    # r + V of the next token, of the last token r alone
    assert result.returns.tolist() == pytest.approx([7.0, 0.25, 1.0, 0.0, -1.0])


def test_tool_output_takes_no_time():
    kept = MASK.nonzero()[:, 0]
    whole = gae(REWARDS, VALUES, MASK, LENGTHS, gamma=0.9, lam=0.7)
    short = gae(REWARDS[kept], VALUES[kept], MASK[kept], torch.tensor([2, 2]), gamma=0.9, lam=0.7)
    assert torch.equal(whole.advantages[kept], short.advantages)
    assert torch.equal(whole.returns[kept], short.returns)
    assert not whole.advantages[1]
    assert not whole.returns[1]


def test_a_nan_of_the_critic_is_seen():
    values = VALUES.clone()
    values[4] = math.nan
    assert gae(REWARDS, values, MASK, LENGTHS).advantages.isnan().any()


def test_a_perfect_critic_leaves_nothing_to_learn():
    values = torch.tensor([1.0, 1.0, 1.0, -0.5, -1.0])
    result = gae(REWARDS.float(), values, ALL, LENGTHS)
    assert result.advantages.tolist() == [0.0] * 5
    assert torch.equal(result.returns, values)
