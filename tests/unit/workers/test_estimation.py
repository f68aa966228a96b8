import math

import pytest
import torch
from lone_role import Alone, grpo_spec

from ppojob_api.v1alpha1.algorithm import AlgorithmSpec
from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_trainer.controller.training_step import needs_old_logprobs
from ppojob_trainer.rollout.trajectory import Segment, Trajectory
from ppojob_trainer.rows.batch_index import BatchIndex
from ppojob_trainer.rows.experience import Experience
from ppojob_trainer.rpc.messages.rollout import PromptTokens
from ppojob_trainer.rpc.messages.training import Advantaged, Advantages
from ppojob_trainer.workers.batch_rows import BatchRows, GroupCosts
from ppojob_trainer.workers.estimation import add_advantages
from ppojob_trainer.workers.row_store import own_rows

SPEC = grpo_spec(3, 2)


@pytest.fixture
def rows() -> BatchRows:
    """Three groups of two rows of two tokens."""
    index = BatchIndex((4, 5, 6), (2,) * 6, samples=2, owners=(0, 0, 0))
    mine = Experience(
        prompts=[torch.arange(length) for length in index.prompt_lengths],
        row_groups=torch.tensor([0, 0, 1, 1, 2, 2]),
        response_tokens=torch.arange(12),
        lengths=torch.full((6,), 2),
        mask=torch.ones(12, dtype=torch.bool),
        rollout_logprobs=torch.zeros(12),
    )
    return BatchRows(index, mine, Alone(), GroupCosts(100, share_prompts=True))


def estimated(rows: BatchRows, scores: list[float]) -> Advantaged:
    return add_advantages(SPEC, rows, Advantages(scores, 0.0))


def test_groups_of_equal_scores_give_no_signal(rows: BatchRows):
    assert estimated(rows, [1, 0, 1, 1, 0, 0]).zero_signal_groups == 2 / 3
    assert estimated(rows, [1, 0, 1, 0, 0, 1]).zero_signal_groups == 0.0


def test_a_group_whose_signal_lies_on_no_trained_token_gives_none(rows: BatchRows):
    rows.mine.mask[:4] = False
    assert estimated(rows, [1, 0, 1, 0, 0, 1]).zero_signal_groups == 1 / 3


def test_a_row_that_is_left_out_is_compared_with_nothing(rows: BatchRows):
    """Its group is that of the other rows, and its tokens are not trained."""
    answer = add_advantages(SPEC, rows, Advantages([3, 7, 1, 0, 5, 5], 0.0, dropped=[1, 4, 5]))
    assert rows.mine.mask.tolist() == [True] * 2 + [False] * 2 + [True] * 4 + [False] * 4
    assert answer.row_rewards == [3, 0, 1, 0, 0, 0]
    alone = rows.mine.advantages.clone()
    rows.mine.mask[:] = True
    rows.mine.mask[[2, 3, 8, 9, 10, 11]] = False
    add_advantages(SPEC, rows, Advantages([3, -100, 1, 0, 100, 5], 0.0))
    assert torch.equal(alone, rows.mine.advantages)
    assert (alone[rows.mine.mask] != 0).any()
    assert not alone[~rows.mine.mask].any()


def test_tokens_of_a_rank_count_the_prompt_once_a_row(rows: BatchRows):
    answer = estimated(rows, [1, 0, 1, 1, 0, 0])
    assert answer.tokens_owned == answer.tokens_computed == [2 * (4 + 5 + 6) + 12]


def test_a_row_that_ends_in_tokens_of_others_keeps_its_score(rows: BatchRows):
    rows.mine.mask[[1, 5, 6, 7]] = False  # of row 0 and 2 the last token, of row 3 both
    answer = estimated(rows, [3, 1, 2, 9, 0, 5])
    assert answer.row_rewards == [3, 1, 2, 0, 0, 5]
    assert rows.mine.token_rewards.nonzero()[:, 0].tolist() == [0, 3, 4, 11]


def test_rewards_of_turns_stand_on_their_turns(rows: BatchRows):
    """Two turns of the policy with an answer between them, and one at the end."""
    row = Trajectory(
        (
            Segment((1, 2), (0.0, 0.0), 0),
            Segment((3,), reward=0.5),
            Segment((4,), (0.0,), 0, reward=0.25),
            Segment((5, 6), reward=2.0),
        ),
        "stop",
    )
    other = Trajectory((Segment((7,), reward=8.0), Segment((8,), (0.0,), 0)), "length")
    owned = own_rows(0, [PromptTokens(0, [1, 2])], 2, [row, other], has_turns=True).experience
    index = BatchIndex((2,), (6, 2), samples=2, owners=(0,))
    batch = BatchRows(index, owned, Alone(), GroupCosts(100, share_prompts=True))
    assert owned.mask.tolist() == [True, True, False, True, False, False, False, True]
    answer = estimated(batch, [4, 1])
    assert owned.token_rewards is not None
    assert owned.token_rewards.tolist() == [0, 0.5, 0, 0.25 + 2 + 4, 0, 0, 0, 1]
    assert answer.row_rewards == [6.75, 1]


def corrected_spec(**correction: object) -> PPOJobSpec:
    algorithm = {**SPEC.algorithm.model_dump(by_alias=True), "rolloutCorrection": correction}
    return SPEC.model_copy(update={"algorithm": AlgorithmSpec.model_validate(algorithm)})


def test_a_correction_weighs_and_rejects_before_the_advantages(rows: BatchRows):
    """The engine gives tokens 0, 5 and 6 half and a quarter of the trainer's probability, and 4."""
    rows.mine.old_logprobs = torch.full((12,), -2.0)
    rows.mine.rollout_logprobs = torch.full((12,), -2.0)
    for token, ratio in ((0, 2.0), (5, 4.0), (6, 0.25)):
        rows.mine.rollout_logprobs[token] -= math.log(ratio)
    scores = [3.0, 1.0, 2.0, 9.0, 0.0, 5.0]
    plain = add_advantages(SPEC, rows, Advantages(scores, 0.0))
    expected = rows.mine.advantages
    assert plain.told == {}
    assert rows.mine.loss_weights is None
    rejection = ({"mode": "token_k1", "low": 0.4, "high": 3.0},)
    spec = corrected_spec(weights="token", weight_limit=3.0, rejection=rejection)
    answer = add_advantages(spec, rows, Advantages(scores, 0.0))
    # Token 5 is the last of its row, which carried its score; its peers are compared with it.
    kept = torch.tensor([token not in (5, 6) for token in range(12)])
    assert torch.equal(rows.mine.advantages, torch.where(kept, expected, 0.0))
    assert answer.row_rewards == plain.row_rewards
    assert torch.equal(rows.mine.update_mask, kept)
    weights = [{0: 2.0, 5: 3.0, 6: 0.25}.get(token, 1.0) for token in range(12)]
    assert rows.mine.loss_weights.tolist() == pytest.approx(weights)
    assert answer.told["rollout_corr/rollout_rs_masked_fraction"] == 2 / 12
    assert answer.told["rollout_corr/rollout_rs_seq_masked_fraction"] == 2 / 6
    assert answer.told["rollout_corr/rollout_is_max"] == 3.0


def reject(rows: BatchRows, *tokens: int) -> PPOJobSpec:
    """A job that rejects these tokens, which the engine gives ten times the probability."""
    rows.mine.old_logprobs = torch.full((12,), -3.0)
    rows.mine.rollout_logprobs = torch.full((12,), -3.0)
    rows.mine.rollout_logprobs[list(tokens)] += math.log(10.0)
    return corrected_spec(rejection=({"mode": "token_k1", "high": 3.0},))


def test_what_is_rejected_is_left_out_of_updates_alone(rows: BatchRows):
    """A reference that is lost in the updates reads the rows again, with the mask of before."""
    spec = reject(rows, 0, 4, 5)
    add_advantages(spec, rows, Advantages([1, 0, 1, 0, 0, 1], 0.0))
    assert rows.mine.mask.all()
    seen = []

    def predict(staged: Experience) -> tuple[torch.Tensor, ...]:
        seen.append(staged.mask)
        return (torch.zeros(staged.num_tokens),)

    rows.fill("ref_logprobs", predict)
    assert seen[0].all()
    staged = rows.staged([0, 1, 2], ("advantages",))
    assert staged.mask.tolist() == [token not in (0, 4, 5) for token in range(12)]


def test_an_estimator_of_tokens_sees_what_is_kept_alone(rows: BatchRows):
    """As in verl: REINFORCE++ loses the score of a row whose last token is rejected."""
    spec = reject(rows, 1)
    algorithm = {**spec.algorithm.model_dump(by_alias=True), "type": "reinforce_plus_plus"}
    spec = spec.model_copy(update={"algorithm": AlgorithmSpec.model_validate(algorithm)})
    answer = add_advantages(spec, rows, Advantages([7, 0, 0, 0, 1, 0], 0.0))
    assert answer.returns.max == 1.0
    assert answer.row_rewards == [7, 0, 0, 0, 1, 0]
    # Whitened over the eleven tokens that are kept, of which two have a return of 1.
    kept = rows.mine.advantages[rows.mine.update_mask]
    assert len(kept) == 11
    assert kept.sum().item() == pytest.approx(0.0, abs=1e-5)
    assert kept.var().item() == pytest.approx(1.0, abs=1e-5)


def test_an_empty_correction_measures_alone(rows: BatchRows):
    rows.mine.old_logprobs = torch.full((12,), -2.0)
    rows.mine.rollout_logprobs = torch.full((12,), -2.5)
    answer = add_advantages(corrected_spec(), rows, Advantages([1, 0, 1, 0, 0, 1], 0.0))
    assert rows.mine.update_mask is None
    assert rows.mine.loss_weights is None
    assert answer.told["rollout_corr/kl"] == -0.5
    assert answer.told["rollout_corr/training_log_ppl"] == 2.0


def test_only_the_least_sure_tokens_have_a_loss(rows: BatchRows):
    """A fourth of ten trained tokens is two; a third has the entropy of the second."""
    rows.mine.mask[[1, 3]] = False
    rows.mine.entropies = torch.tensor([0.1, 9.0, 0.5, 9.0, 2.0, 0.3, 1.5, 1.5, 0.2, 0.0, 0.4, 0.1])
    algorithm = {**SPEC.algorithm.model_dump(by_alias=True), "highEntropyShare": 0.25}
    spec = SPEC.model_copy(update={"algorithm": AlgorithmSpec.model_validate(algorithm)})
    answer = add_advantages(spec, rows, Advantages([1, 0, 1, 0, 0, 1], 0.0))
    assert answer.told == {"actor/entropy_threshold": 1.5}
    assert rows.mine.loss_weights.tolist() == [float(token in (4, 6, 7)) for token in range(12)]
    assert int(rows.mine.mask.sum()) == 10


@pytest.mark.parametrize(
    ("changes", "is_needed"),
    [
        ({}, False),
        ({"epochs": 2}, True),
        ({"miniBatchPrompts": 1}, True),
        ({"rolloutCorrection": {}}, True),
        ({"highEntropyShare": 0.2}, True),
        ({"entropyControl": {}}, True),
        ({"type": "optimal_token_baseline"}, True),
        ({"epochs": 2, "policyLoss": {"type": "bypass"}}, False),
        ({"epochs": 2, "policyLoss": {"type": "bypass"}, "rolloutCorrection": {}}, False),
        ({"policyLoss": {"type": "bypass"}, "kl": {"in": "reward"}}, True),
    ],
)
def test_when_the_old_policy_is_asked(changes: dict[str, object], is_needed: bool):
    algorithm = {"type": "grpo", "promptsPerStep": 3, "samplesPerPrompt": 2, **changes}
    assert needs_old_logprobs(AlgorithmSpec.model_validate(algorithm)) is is_needed
