import math

import pytest
import torch
from ragged_batches import DTYPES, Batch, for_any_batch

from ppojob_trainer.algorithms import advantages
from ppojob_trainer.algorithms.advantages import ADVANTAGES
from ppojob_trainer.algorithms.gae import CRITIC_ADVANTAGES
from ppojob_trainer.algorithms.masked import row_sum
from ppojob_trainer.algorithms.token_baseline import TOKEN_BASELINES

# One prompt, three responses of 2, 1 and 3 tokens with scores 1, 0 and 0.5 on their last tokens.
LENGTHS = torch.tensor([2, 1, 3])
REWARDS = torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0, 0.5])
ALL = torch.ones(6, dtype=torch.bool)
ONE_GROUP = torch.tensor([7, 7, 7])


ESTIMATORS = {**ADVANTAGES, **TOKEN_BASELINES, **CRITIC_ADVANTAGES}


def estimate(name: str, *columns: torch.Tensor) -> advantages.Advantages:
    """What an estimator says, with what it reads beside the rewards made of the same columns."""
    rewards, mask, lengths, groups = columns
    own = {}
    if name in CRITIC_ADVANTAGES:
        return CRITIC_ADVANTAGES[name](rewards, torch.ones_like(rewards), mask, lengths)
    if name in TOKEN_BASELINES:
        half = torch.full_like(rewards, 0.5)
        own = {"old_logprobs": half.log(), "sum_pi_squared": half}
    if name == "remax":
        own = {"greedy_scores": groups.to(torch.float64)}
    if name == "gdpo":
        scores = row_sum(rewards.detach(), mask, lengths)
        own = {"rewards": scores[None], "weights": torch.ones(1)}
    return ESTIMATORS[name](*columns, **own)


def per_row(result: torch.Tensor, lengths: torch.Tensor = LENGTHS) -> list[float]:
    """The value of each row, which all its tokens must share."""
    rows = []
    for row in result.split(lengths.tolist()):
        assert (row == row[0]).all()
        rows.append(row[0].item())
    return rows


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        # mean 0.5; deviations 0.5, -0.5, 0; unbiased variance (0.25 + 0.25) / 2 = 0.25, std 0.5
        ("grpo", {}, [0.5 / 0.500001, -0.5 / 0.500001, 0.0]),
        # Dr. GRPO
        ("grpo", {"normalize_by_std": False}, [0.5, -0.5, 0.0]),
        # the best has 1, the second best 0.5, std 0.5
        ("grpo_passk", {}, [0.5 / 0.500001, 0.0, 0.0]),
        ("grpo_passk", {"normalize_by_std": False}, [0.5, 0.0, 0.0]),
        # three rows, two with a score: 3 / 2 (s - 0.5)
        ("gpg", {}, [0.75, -0.75, 0.0]),
        # 1 - (0 + 0.5) / 2 = 0.75; 0 - (1 + 0.5) / 2 = -0.75; 0.5 - (1 + 0) / 2 = 0
        ("rloo", {}, [0.75, -0.75, 0.0]),
        # baseline (2 * 1 + 1 * 0 + 3 * 0.5) / (2 + 1 + 3) = 3.5 / 6 = 0.5833333
        ("opo", {}, [0.4166667, -0.5833333, -0.0833333]),
        # s - mean: 0.5, -0.5, 0 on 2, 1 and 3 tokens: mean (1 - 0.5) / 6 = 0.0833333;
        # squares 2 * 0.25 + 0.25 = 0.75 minus 6 * 0.0833333^2 = 0.0416667 leaves 0.7083333;
        # / 5 = 0.1416667; root 0.3763863
        (
            "reinforce_plus_plus_baseline",
            {},
            [(v - 0.0833333) / 0.3763863 for v in (0.5, -0.5, 0.0)],
        ),
    ],
)
def test_by_hand(name: str, options: dict[str, bool], expected: list[float]):
    result = ADVANTAGES[name](REWARDS, ALL, LENGTHS, ONE_GROUP, **options)
    assert per_row(result.advantages) == pytest.approx(expected, abs=5e-7)
    if name == "grpo":
        assert torch.equal(result.advantages, result.returns)


def test_reinforce_plus_plus_by_hand():
    # gamma 0.5: returns 0.5, 1 | 0 | 0.125, 0.25, 0.5
    # sum 2.375, mean 0.3958333; squares of the returns 0.25 + 1 + 0 + 0.015625 + 0.0625 + 0.25
    # = 1.578125; minus 6 * 0.3958333^2 = 0.9401042 leaves 0.6380208;
    # / 5 = 0.1276042; root 0.3572173
    result = ADVANTAGES["reinforce_plus_plus"](REWARDS, ALL, LENGTHS, ONE_GROUP, gamma=0.5)
    returns = [0.5, 1.0, 0.0, 0.125, 0.25, 0.5]
    assert result.returns.tolist() == returns
    expected = [(r - 0.3958333) / 0.3572173 for r in returns]
    assert result.advantages.tolist() == pytest.approx(expected, abs=1e-6)


def test_remax_by_hand():
    # Scores 1, 0 and 0.5, greedy 0.75: 1 - 0.75, 0 - 0.75, 0.5 - 0.75.
    greedy = torch.full((3,), 0.75)
    result = ADVANTAGES["remax"](REWARDS, ALL, LENGTHS, ONE_GROUP, greedy_scores=greedy)
    assert per_row(result.advantages) == [0.25, -0.75, -0.25]
    # A reward in the middle of a row is no part of what comes behind it.
    early = torch.tensor([1.0, 0.0, 0.0, 0.0, 0.5, 0.0])
    result = ADVANTAGES["remax"](early, ALL, LENGTHS, ONE_GROUP, greedy_scores=greedy)
    assert result.advantages.tolist() == [0.25, -0.75, -0.75, -0.25, -0.25, -0.75]


def test_gdpo_by_hand():
    # Two prompts with two responses of one token. The first reward differs within the first prompt,
    # the second one, a hundred times as large, within the second prompt: both count the same.
    # (s - mean) / std is 1/sqrt(2) and its negative, up to 1e-6; whitened over four numbers
    # a, -a, a, -a: variance 4 a^2 / 3, so sqrt(3) / 2 and its negative.
    rewards = torch.tensor([[1.0, 0.0, 1.0, 1.0], [0.0, 0.0, 300.0, 200.0]])
    mask, lengths = torch.ones(4).bool(), torch.ones(4).long()
    result = ADVANTAGES["gdpo"](
        torch.zeros(4),
        mask,
        lengths,
        torch.tensor([0, 0, 1, 1]),
        rewards=rewards,
        weights=torch.ones(2),
    )
    half = 3**0.5 / 2
    assert result.advantages.tolist() == pytest.approx([half, -half, half, -half], abs=2e-6)


def test_a_row_alone_in_its_group_keeps_its_score():
    groups = torch.tensor([0, 1, 2])
    for name in ("rloo", "opo"):
        assert per_row(ADVANTAGES[name](REWARDS, ALL, LENGTHS, groups).advantages) == [1, 0, 0.5]
    for name in ("grpo", "grpo_passk"):  # verl raises an error in the second
        scaled = per_row(ADVANTAGES[name](REWARDS, ALL, LENGTHS, groups).advantages)
        assert scaled == pytest.approx([1 / 1.000001, 0.0, 0.5 / 1.000001], abs=1e-7)
    assert per_row(ADVANTAGES["gpg"](REWARDS, ALL, LENGTHS, groups).advantages) == [1.5, 0, 0.75]


def test_where_two_are_best_nobody_is_ahead():
    rewards = torch.tensor([0.0, 1.0, 1.0, 0.0, 0.0, 0.5])
    for normalize in (True, False):
        result = ADVANTAGES["grpo_passk"](
            rewards, ALL, LENGTHS, ONE_GROUP, normalize_by_std=normalize
        )
        assert not result.advantages.any()


def test_gpg_counts_the_rows_of_all_groups():
    # Scores 1 and 0 of one prompt, 0.5 and 0.5 of another: 4 rows, 3 with a score.
    rewards = torch.tensor([1.0, 0.0, 0.5, 0.5])
    groups = torch.tensor([0, 0, 1, 1])
    result = ADVANTAGES["gpg"](rewards, rewards == rewards, torch.ones(4).long(), groups)
    assert result.advantages.tolist() == pytest.approx([4 / 6, -4 / 6, 0.0, 0.0])
    nothing = ADVANTAGES["gpg"](rewards * 0, rewards == rewards, torch.ones(4).long(), groups)
    assert not nothing.advantages.any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("score", [0.1, 1.1, -0.7, 1e-3, 1e6 + 0.1])
@pytest.mark.parametrize(
    "name", ["grpo", "grpo_passk", "rloo", "opo", "gpg", "reinforce_plus_plus_baseline"]
)
def test_a_group_of_equal_scores_has_no_signal_at_all(name: str, score: float, dtype: torch.dtype):
    # verl's float32 deviation of 0.1 seven times is not 0: its advantage comes out up to 0.0048.
    rewards = torch.full((7,), score, dtype=dtype)
    lengths = torch.ones(7, dtype=torch.int64)
    result = ADVANTAGES[name](rewards, rewards == rewards, lengths, torch.zeros(7).long())
    assert not result.advantages.any()


def test_rewards_on_masked_tokens_do_not_count():
    # The first token of row 0 is tool output with a reward of 10 on it. Ours: scores 1, 0, 0.5 as
    # before. verl adds it: scores 11, 0, 0.5, mean 3.8333333, so its first row has 7.1666667.
    rewards = REWARDS.clone()
    rewards[0] = 10.0
    mask = ALL.clone()
    mask[0] = False
    result = ADVANTAGES["grpo"](rewards, mask, LENGTHS, ONE_GROUP, normalize_by_std=False)
    assert result.advantages.tolist() == [0.0, 0.5, -0.5, 0.0, 0.0, 0.0]


def test_a_row_without_trained_tokens_is_no_member_of_its_group():
    # Row 1 (score 0) is masked throughout: mean (1 + 0.5) / 2 = 0.75. verl keeps it in the mean:
    # (1 + 0 + 0.5) / 3 = 0.5, so its first row has 0.5.
    mask = torch.tensor([True, True, False, True, True, True])
    result = ADVANTAGES["grpo"](REWARDS, mask, LENGTHS, ONE_GROUP, normalize_by_std=False)
    assert per_row(result.advantages) == [0.25, 0.0, -0.25]


def test_returns_pass_over_tool_output():
    # answer, tool, answer with reward 1 at the end: both trained tokens see it, one trained step
    # apart, as in verl.
    rewards = torch.tensor([0.0, 0.0, 1.0])
    mask = torch.tensor([True, False, True])
    row = torch.tensor([3])
    result = ADVANTAGES["reinforce_plus_plus"](rewards, mask, row, torch.tensor([0]), gamma=0.9)
    assert result.returns.tolist() == pytest.approx([0.9, 0.0, 1.0])


@for_any_batch
def test_the_order_of_rows_does_not_matter(batch: Batch):
    order = list(reversed(range(len(batch.groups))))
    turned = Batch(**{name: [column[i] for i in order] for name, column in vars(batch).items()})
    for name in ADVANTAGES:
        straight, reverse = (
            estimate(name, b.flat("rewards", torch.float64), b.flat_mask, b.lengths, b.row_groups)
            for b in (batch, turned)
        )
        rows = reverse.advantages.split(turned.lengths.tolist())
        back = torch.cat([rows[order.index(i)] for i in range(len(order))])
        torch.testing.assert_close(straight.advantages, back, rtol=1e-9, atol=1e-9)


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
