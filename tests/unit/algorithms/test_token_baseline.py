import pytest
import torch

from ppojob_trainer.algorithms.token_baseline import TOKEN_BASELINES

# One prompt, responses of 2 and 3 tokens with scores 1 and 3 on their last tokens.
LENGTHS = torch.tensor([2, 3])
REWARDS = torch.tensor([0.0, 1.0, 0.0, 0.0, 3.0])
ALL = torch.ones(5, dtype=torch.bool)
ONE_GROUP = torch.tensor([7, 7])
# With π = 1/2 a token weighs Σπ².
PROBABILITIES = {
    "old_logprobs": torch.full((5,), 0.5).log(),
    "sum_pi_squared": torch.tensor([0.25, 0.5, 0.5, 0.25, 0.5]),
}


def advantages(
    name: str, mask: torch.Tensor = ALL, groups: torch.Tensor = ONE_GROUP, **own: torch.Tensor
) -> list[float]:
    estimator = TOKEN_BASELINES[name]
    return estimator(REWARDS, mask, LENGTHS, groups, **PROBABILITIES, **own).advantages.tolist()


@pytest.mark.parametrize("name", TOKEN_BASELINES)
def test_by_hand(name: str):
    # Weights 0.25, 0.75 and 0.5, 0.75, 1.25. First place: (1 * 0.25 + 3 * 0.5) / 0.75 = 7 / 3;
    # second: (1 * 0.75 + 3 * 0.75) / 1.5 = 2; at the third the longer row goes on alone.
    expected = [1 - 7 / 3, 1 - 2, 3 - 7 / 3, 3 - 2, 3.0]
    assert advantages(name) == pytest.approx(expected, abs=1e-6)
    # Weights of the engine count squared: 2 makes the first row's 1, 3.
    heavy = torch.tensor([2.0, 2.0, 1.0, 1.0, 1.0])
    expected = [1 - 2.5 / 1.5, 1 - 5.25 / 3.75, 3 - 2.5 / 1.5, 3 - 5.25 / 3.75, 3.0]
    assert advantages(name, rollout_weights=heavy) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", TOKEN_BASELINES)
def test_a_row_alone_in_its_group_has_no_baseline(name: str):
    assert advantages(name, groups=torch.tensor([0, 1])) == [1, 1, 3, 3, 3]


def test_what_a_tool_has_written_moves_no_token():
    """The longer row begins with a token that a tool has written."""
    mask = torch.tensor([True, True, False, True, True])
    # Its weights are 0.25 and 0.75, at places 1 and 2 of all tokens, 0 and 1 of its own.
    # Place 0: the first row is the only one there, and place 1: (0.75 + 3 * 0.25) / 1 = 1.5.
    plain = [0.0, 1 - 1.5, 0.0, 3 - 1.5, 3.0]
    assert advantages("optimal_token_baseline", mask) == pytest.approx(plain, abs=1e-6)
    # (1 * 0.25 + 3 * 0.25) / 0.5 = 2 and (0.75 + 3 * 0.75) / 1.5 = 2.
    of_turns = [-1.0, -1.0, 0.0, 1.0, 1.0]
    assert advantages("tir_optimal_token_baseline", mask) == pytest.approx(of_turns, abs=1e-6)
