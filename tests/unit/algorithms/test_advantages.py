import itertools
import math

import pytest
import torch
from ragged_batches import DTYPES

from ppojob_trainer.algorithms import advantages
from ppojob_trainer.algorithms.advantages import ADVANTAGES
from ppojob_trainer.algorithms.gae import CRITIC_ADVANTAGES
from ppojob_trainer.algorithms.implicit_rewards import PROCESS_ADVANTAGES
from ppojob_trainer.algorithms.masked import row_sum
from ppojob_trainer.algorithms.token_baseline import TOKEN_BASELINES
from ppojob_trainer.algorithms.turn_advantages import TURN_ADVANTAGES, Turns

# One prompt, three responses of 2, 1 and 3 tokens with scores 1, 0 and 0.5 on their last tokens.
LENGTHS = torch.tensor([2, 1, 3])
REWARDS = torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0, 0.5])
ALL = torch.ones(6, dtype=torch.bool)
ONE_GROUP = torch.tensor([7, 7, 7])


ESTIMATORS = {
    **ADVANTAGES,
    **TOKEN_BASELINES,
    **CRITIC_ADVANTAGES,
    **PROCESS_ADVANTAGES,
    **TURN_ADVANTAGES,
}


def estimate(name: str, *columns: torch.Tensor) -> advantages.Advantages:
    """What an estimator says, with what it reads beside the rewards made of the same columns."""
    rewards, mask, lengths, groups = columns
    own = {}
    if name in CRITIC_ADVANTAGES:
        return CRITIC_ADVANTAGES[name](rewards, torch.ones_like(rewards), mask, lengths)
    if name in PROCESS_ADVANTAGES:
        weights = {"process_weight": 5.0, "outcome_weight": 5.0}
        return PROCESS_ADVANTAGES[name](rewards, torch.ones_like(rewards), *columns[1:], **weights)
    if name in TOKEN_BASELINES:
        half = torch.full_like(rewards, 0.5)
        own = {"old_logprobs": half.log(), "sum_pi_squared": half}
    if name in TURN_ADVANTAGES:
        own = {"turns": Turns.of(*columns[1:], torch.zeros_like(rewards, dtype=torch.int64))}
    if name == "remax":
        own = {"greedy_scores": groups.to(torch.float64)}
    if name == "spo":
        own = {"baselines": groups.to(torch.float64) / 8}
    if name == "gdpo":
        scores = row_sum(rewards.detach(), mask, lengths)
        own = {"rewards": scores[None], "weights": torch.ones(1)}
    return ESTIMATORS[name](*columns, **own)


@pytest.mark.parametrize(
    "name", ["grpo", "grpo_passk", "rloo", "opo", "gpg", "maxrl", "reinforce_plus_plus_baseline"]
)
def test_a_group_of_equal_scores_has_no_signal_at_all(name: str):
    # verl's float32 deviation of 0.1 seven times is not 0: its advantage comes out up to 0.0048.
    lengths = torch.ones(7, dtype=torch.int64)
    for score, dtype in itertools.product([0.1, 1.1, -0.7, 1e-3, 1e6 + 0.1], DTYPES):
        rewards = torch.full((7,), score, dtype=dtype)
        result = ADVANTAGES[name](rewards, rewards == rewards, lengths, torch.zeros(7).long())
        assert not result.advantages.any(), (score, dtype)


@pytest.mark.parametrize("normalize", [True, False])
def test_equal_scores_and_no_process_rewards_have_no_signal_at_all(normalize: bool):
    """So it is in the first step of a model that rewards before it learns."""
    lengths, groups = torch.tensor([1, 2, 3, 1]), torch.tensor([0, 0, 0, 1])
    rewards = torch.tensor([0.1, 0.0, 0.1, 0.0, 0.0, 0.1, 0.0])
    columns = (rewards, torch.zeros(7), rewards == rewards, lengths, groups)
    weights = {"process_weight": 5.0, "outcome_weight": 5.0, "normalize": normalize}
    assert not PROCESS_ADVANTAGES["prime"](*columns, **weights).advantages.any()


def test_sums_of_turns_that_are_equal_make_no_pair():
    rewards = torch.tensor([0.1, 0.2, 0.0, 0.3])
    lengths, groups = torch.tensor([2, 2]), torch.tensor([0, 0])
    result = ADVANTAGES["online_dpo"](rewards, rewards == rewards, lengths, groups)
    assert not result.advantages.any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ESTIMATORS)
def test_dtype_is_kept_and_no_graph_is(name: str, dtype: torch.dtype):
    rewards = REWARDS.to(dtype).requires_grad_()
    result = estimate(name, rewards, ALL, LENGTHS, ONE_GROUP)
    assert result.advantages.dtype == result.returns.dtype == dtype
    assert not result.advantages.requires_grad


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_nan_that_is_trained_is_seen(name: str):
    rewards = REWARDS.clone()
    rewards[5] = math.nan
    assert estimate(name, rewards, ALL, LENGTHS, ONE_GROUP).advantages.isnan().any()


@pytest.mark.parametrize("name", ESTIMATORS)
def test_nothing_trained_gives_zeros(name: str):
    result = estimate(name, REWARDS, ~ALL, LENGTHS, ONE_GROUP)
    assert result.advantages.tolist() == [0.0] * 6
    none = torch.zeros(0)
    empty = estimate(name, none, none.bool(), none.long(), none.long())
    assert empty.advantages.shape == (0,)
