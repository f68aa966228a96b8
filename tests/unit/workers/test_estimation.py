import math

import pytest
import torch
from lone_role import grpo_spec, rows_alone

from ppojob_api.v1alpha1.agent import AgentSpec
from ppojob_api.v1alpha1.job import PPOJobSpec
from ppojob_trainer.controller.step_plan import needs_old_logprobs
from ppojob_trainer.data.media.images import LaterImage
from ppojob_trainer.rollout.trajectory import Segment, Trajectory
from ppojob_trainer.rows.batch_index import BatchIndex
from ppojob_trainer.rows.experience import Experience
from ppojob_trainer.rpc.messages.rollout import PromptTokens
from ppojob_trainer.rpc.messages.training import Advantaged, Advantages
from ppojob_trainer.workers.batch_rows import BatchRows
from ppojob_trainer.workers.estimation import add_advantages
from ppojob_trainer.workers.row_store import build_rows

SPEC = grpo_spec(3, 2)


@pytest.fixture
def rows() -> BatchRows:
    index = BatchIndex((4, 5, 6), (2,) * 6, samples=2, owners=(0, 0, 0))
    mine = Experience(
        prompts=[torch.arange(length) for length in index.prompt_lengths],
        row_groups=torch.tensor([0, 0, 1, 1, 2, 2]),
        response_tokens=torch.arange(12),
        lengths=torch.full((6,), 2),
        mask=torch.ones(12, dtype=torch.bool),
        rollout_logprobs=torch.zeros(12),
    )
    return rows_alone(index, mine)


def estimated(rows: BatchRows, scores: list[float]) -> Advantaged:
    return add_advantages(SPEC, rows, Advantages(scores, 0.0))


def spec_of(*, drops: bool = False, **algorithm: object) -> PPOJobSpec:
    told = SPEC.model_dump(by_alias=True, exclude_unset=True)
    told["algorithm"] = {**told["algorithm"], **algorithm}
    if drops:
        told["rewards"] = [{"function": "f", "source": {"path": "f.py"}, "onError": "drop"}]
    return PPOJobSpec.model_validate(told)


def test_groups_without_a_signal_on_trained_tokens_are_counted(rows: BatchRows):
    assert estimated(rows, [1, 0, 1, 1, 0, 0]).zero_signal_groups == 2 / 3
    assert estimated(rows, [1, 0, 1, 0, 0, 1]).zero_signal_groups == 0.0
    rows.mine.mask[:4] = False
    assert estimated(rows, [1, 0, 1, 0, 0, 1]).zero_signal_groups == 1 / 3


def test_a_row_that_is_left_out_is_compared_with_nothing(rows: BatchRows):
    """Its group is that of the other rows; the updates have none of its tokens."""
    left_out = Advantages([3, 7, 1, 0, 5, 5], 0.0, dropped=[1, 4, 5])
    answer = add_advantages(spec_of(drops=True), rows, left_out)
    kept = [True] * 2 + [False] * 2 + [True] * 4 + [False] * 4
    assert rows.mine.mask.all()
    assert rows.mini_batch([0, 1, 2], ("advantages",)).mask.tolist() == kept
    assert answer.row_rewards == [3, 0, 1, 0, 0, 0]
    assert answer.without_tokens == [1, 4, 5]
    alone = rows.mine.advantages.clone()
    rows.mine.mask = torch.tensor(kept)
    add_advantages(SPEC, rows, Advantages([3, -100, 1, 0, 100, 5], 0.0))
    assert torch.equal(alone, rows.mine.advantages)
    assert (alone[rows.mine.mask] != 0).any()
    assert not alone[~rows.mine.mask].any()


def test_a_row_that_was_cut_off_counts_in_its_group_but_is_not_trained(rows: BatchRows):
    scores = [1.0, 0.0, 1.0, 1.0, 0.0, 1.0]
    plain = estimated(rows, scores)
    expected = rows.mine.advantages.clone()
    spec = spec_of(maskTruncated=True)
    assert add_advantages(spec, rows, Advantages(scores, 0.0, masked=[1, 4, 5])) == plain
    assert torch.equal(rows.mine.advantages, expected)
    trained = [True] * 2 + [False] * 2 + [True] * 4 + [False] * 4
    assert rows.mini_batch([0, 1, 2], ("advantages",)).mask.tolist() == trained


def test_where_rows_may_be_left_out_every_step_says_which(rows: BatchRows):
    """The critic's ranks ask for the column in every step."""
    plain = estimated(rows, [1, 0, 1, 0, 0, 1])
    expected = rows.mine.advantages
    assert add_advantages(spec_of(drops=True), rows, Advantages([1, 0, 1, 0, 0, 1], 0.0)) == plain
    assert torch.equal(rows.mine.advantages, expected)
    assert rows.mine.update_mask is not None
    assert rows.mine.update_mask.all()


@pytest.mark.parametrize("weights", ["token", "sequence"])
def test_rows_that_are_left_out_are_no_part_of_a_correction(rows: BatchRows, weights: str):
    """Neither of what it rejects, nor of its diagnostics, nor of the mean of its weights."""
    rows.mine.old_logprobs = torch.full((12,), -3.0)
    rows.mine.rollout_logprobs = torch.linspace(-5.0, -1.0, 12)
    correction = {
        "weights": weights,
        "normalize": True,
        "rejection": [{"mode": "token_k1", "low": 0.4, "high": 2.0}],
    }
    scores = [1, 0, 1, 0, 0, 1]
    spec = spec_of(drops=True, rolloutCorrection=correction)
    with_dropped = add_advantages(spec, rows, Advantages(scores, 0.0, dropped=[0, 5]))
    seen = rows.mine.advantages, rows.mine.loss_weights, rows.mine.update_mask
    rows.mine.mask[[0, 1, 10, 11]] = False
    alone = add_advantages(spec_of(rolloutCorrection=correction), rows, Advantages(scores, 0.0))
    assert with_dropped == alone
    own = rows.mine.advantages, rows.mine.loss_weights, rows.mine.update_mask
    for one, other in zip(seen, own, strict=True):
        assert torch.equal(one, other)
    assert 0 < int(seen[2].sum()) < 8


@pytest.mark.parametrize("weights", ["none", "token", "sequence"])
def test_given_rows_are_compared_and_no_part_of_a_correction(rows: BatchRows, weights: str):
    """They count whole; what is said of drawn rows is what is said where there are no others."""
    rows.mine.old_logprobs = torch.full((12,), -3.0)
    rows.mine.rollout_logprobs = torch.linspace(-5.0, -1.0, 12)
    rows.mine.rollout_logprobs[[0, 1, 10, 11]] = 0.0
    rejection = [{"mode": "token_k1", "low": 0.4, "high": 2.0}]
    correction = {"weights": weights, "rejection": rejection}
    correction |= {} if weights == "none" else {"normalize": True}
    scores = Advantages([1, 0, 1, 0, 0, 1], 0.0)
    estimated(rows, list(scores.scores))
    expected = rows.mine.advantages
    rows.mine.given = torch.isin(torch.arange(12), torch.tensor([0, 1, 10, 11]))
    spec = spec_of(guidance={}, rolloutCorrection=correction)
    told = add_advantages(spec, rows, scores).told
    guided = rows.mine.update_mask, rows.mine.loss_weights
    assert torch.equal(rows.mine.advantages[rows.mine.given], expected[rows.mine.given])
    rows.mine.mask = ~rows.mine.given
    assert add_advantages(spec_of(rolloutCorrection=correction), rows, scores).told == told
    assert guided[0] is not None
    assert rows.mine.update_mask is not None
    assert torch.equal(guided[0], rows.mine.update_mask | rows.mine.given)
    if guided[1] is not None and rows.mine.loss_weights is not None:
        whole = torch.where(rows.mine.given, 1.0, rows.mine.loss_weights)
        assert torch.equal(guided[1], whole)
    assert (guided[1] is None) == (weights == "none")


@pytest.mark.parametrize("kind", ["optimal_token_baseline", "tir_optimal_token_baseline"])
def test_token_baselines_leave_rows_out(rows: BatchRows, kind: str):
    rows.mine.old_logprobs = torch.linspace(-3.0, -0.5, 12)
    rows.mine.sum_pi_squared = torch.linspace(0.2, 0.9, 12)
    answer = add_advantages(
        spec_of(drops=True, type=kind), rows, Advantages([1, 0, 3, 2, 0, 1], 0.0, dropped=[0, 4, 5])
    )
    # Alone in its group, a row is compared with nothing; a group without rows has no signal.
    assert rows.mine.advantages.tolist()[:4] == [0, 0, 0, 0]
    assert rows.mine.advantages.tolist()[8:] == [0, 0, 0, 0]
    assert rows.mine.advantages[4:8].all()
    assert answer.zero_signal_groups == 2 / 3


def test_the_kl_of_a_step_is_that_of_the_rows_that_are_trained_on(rows: BatchRows):
    """It leads the coefficient: rows that are left out are no zeros among the others."""
    rows.mine.old_logprobs = torch.full((12,), -1.0)
    rows.mine.ref_logprobs = torch.full((12,), -1.5)
    spec = spec_of(drops=True, kl={"in": "reward", "estimator": "k1", "coefficient": 0.1})
    answer = add_advantages(spec, rows, Advantages([1] * 6, 0.1, dropped=[0, 3, 5]))
    assert answer.kl == pytest.approx(0.5)


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
    owned = build_rows(0, [PromptTokens(0, [1, 2])], 2, [row, other], has_turns=True).experience
    index = BatchIndex((2,), (6, 2), samples=2, owners=(0,))
    batch = rows_alone(index, owned)
    assert owned.mask.tolist() == [True, True, False, True, False, False, False, True]
    answer = estimated(batch, [4, 1])
    assert owned.token_rewards is not None
    assert owned.token_rewards.tolist() == [0, 0.5, 0, 0.25 + 2 + 4, 0, 0, 0, 1]
    assert answer.row_rewards == [6.75, 1]


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
    rejection = [{"mode": "token_k1", "low": 0.4, "high": 3.0}]
    correction = {"weights": "token", "weightLimit": 3.0, "rejection": rejection}
    spec = spec_of(rolloutCorrection=correction)
    answer = add_advantages(spec, rows, Advantages(scores, 0.0))
    # Token 5 is the last of its row, which carried its score; its peers are compared with it.
    kept = torch.tensor([token not in (5, 6) for token in range(12)])
    assert torch.equal(rows.mine.advantages, torch.where(kept, expected, 0.0))
    assert answer.row_rewards == plain.row_rewards
    # A row that keeps a token has the advantage of that token; row 3 keeps token 7 alone.
    assert answer.row_advantages == plain.row_advantages
    assert torch.equal(rows.mine.update_mask, kept)
    weights = [{0: 2.0, 5: 3.0, 6: 0.25}.get(token, 1.0) for token in range(12)]
    assert rows.mine.loss_weights.tolist() == pytest.approx(weights)
    assert answer.told["rollout_corr/rollout_rs_masked_fraction"] == 2 / 12
    assert answer.told["rollout_corr/rollout_rs_seq_masked_fraction"] == 2 / 6
    assert answer.told["rollout_corr/rollout_is_max"] == 3.0


def reject(rows: BatchRows, *tokens: int, **algorithm: object) -> PPOJobSpec:
    """A job that rejects these tokens, which the engine gives ten times the probability."""
    rows.mine.old_logprobs = torch.full((12,), -3.0)
    rows.mine.rollout_logprobs = torch.full((12,), -3.0)
    rows.mine.rollout_logprobs[list(tokens)] += math.log(10.0)
    correction = {"rejection": [{"mode": "token_k1", "high": 3.0}]}
    return spec_of(rolloutCorrection=correction, **algorithm)


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
    staged = rows.mini_batch([0, 1, 2], ("advantages",))
    assert staged.mask.tolist() == [token not in (0, 4, 5) for token in range(12)]


def test_an_estimator_of_tokens_sees_what_is_kept_alone(rows: BatchRows):
    """As in verl: REINFORCE++ loses the score of a row whose last token is rejected."""
    spec = reject(rows, 1, type="reinforce_plus_plus")
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
    answer = add_advantages(
        spec_of(rolloutCorrection={}), rows, Advantages([1, 0, 1, 0, 0, 1], 0.0)
    )
    assert rows.mine.update_mask is None
    assert rows.mine.loss_weights is None
    assert answer.told["rollout_corr/kl"] == -0.5
    assert answer.told["rollout_corr/training_log_ppl"] == 2.0


def test_only_the_least_sure_tokens_have_a_loss(rows: BatchRows):
    """A fourth of ten trained tokens is two; a third has the entropy of the second."""
    rows.mine.mask[[1, 3]] = False
    rows.mine.entropies = torch.tensor([0.1, 9.0, 0.5, 9.0, 2.0, 0.3, 1.5, 1.5, 0.2, 0.0, 0.4, 0.1])
    spec = spec_of(highEntropyShare=0.25)
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
    assert needs_old_logprobs(spec_of(**changes).algorithm) is is_needed


def test_updates_train_on_the_rows_that_were_drawn(rows: BatchRows):
    scores = [1.0, 0.5, 0.0, 0.5, 0.5, 0.0]
    spec = spec_of(resampling={"method": "max_min"})
    answer = add_advantages(spec, rows, Advantages(scores, 0.0, step=3))
    advantages = rows.mine.advantages
    copies = rows.mine.copies[::2].tolist()
    assert sum(copies) == 6
    assert copies[1] == copies[3] == copies[4] == 0  # neither the best nor the worst
    assert answer.told == {"training/resampling/distinct_share": sum(c > 0 for c in copies) / 6}
    staged = rows.mini_batch([2, 0, 1], ("advantages",))
    drawn = [
        row for group in (2, 0, 1) for row in (2 * group, 2 * group + 1) for _ in range(copies[row])
    ]
    assert sorted(staged.response_tokens.tolist()) == sorted(
        token for row in drawn for token in (2 * row, 2 * row + 1)
    )
    assert torch.equal(staged.advantages, advantages[staged.response_tokens])
    prompts = [staged.prompts[group].numel() for group in staged.row_groups.tolist()]
    assert prompts == [4 + token // 4 for token in staged.response_tokens[::2].tolist()]


def test_updates_are_told_which_rows_scored_well(rows: BatchRows):
    scores = [1.0, 0.5, 0.0, 1.0, 0.5, 0.0]
    given = Advantages(scores, 0.0, positives=[0, 3])
    add_advantages(SPEC, rows, given)
    assert rows.mine.positives is None, "nobody asks"
    spec = spec_of(positiveExamples={}, resampling={"method": "max_min"})
    add_advantages(spec, rows, given)
    staged = rows.mini_batch([1, 0, 2], ("positives",))
    assert staged.positives is not None
    rows_of_tokens = staged.response_tokens // 2  # whose numbers are those of the tokens
    assert torch.equal(staged.positives, torch.isin(rows_of_tokens, torch.tensor([0, 3])))


@pytest.mark.parametrize("kind", ["self_certainty", "negative_entropy"])
def test_rows_earn_the_mean_certainty_of_their_trained_tokens(rows: BatchRows, kind: str):
    column = torch.linspace(0.5, 6.0, 12)
    if kind == "self_certainty":
        rows.mine.certainties = column
    else:
        rows.mine.entropies = -column
    rows.mine.mask[1] = False
    scores = [1.0, 0.0, 1.0, 0.0, 0.0, 1.0]
    settings = {"type": kind, "coefficient": 0.25, "besideScores": True}
    spec = spec_of(drops=True, certaintyReward=settings)
    answer = add_advantages(spec, rows, Advantages(scores, 0.0, dropped=[4]))
    tokens = column.tolist()
    means = [tokens[0]] + [(tokens[n] + tokens[n + 1]) / 2 for n in range(2, 12, 2)]
    expected = [score + 0.25 * mean for score, mean in zip(scores, means, strict=True)]
    expected[4] = 0.0  # it is left out
    assert answer.row_rewards == pytest.approx(expected, rel=1e-6)
    kept = means[:4] + means[5:]
    told = {"mean": sum(kept) / 5, "max": max(kept), "min": min(kept)}
    for name, value in told.items():
        assert answer.told[f"certainty_reward/{name}"] == pytest.approx(value, rel=1e-6)
    given = [score + 0.25 * mean for score, mean in zip(scores, means, strict=True)]
    advantages = rows.mine.advantages.clone()
    add_advantages(spec_of(drops=True), rows, Advantages(given, 0.0, dropped=[4]))
    torch.testing.assert_close(rows.mine.advantages, advantages, rtol=1e-5, atol=1e-6)


def test_what_is_drawn_belongs_to_seed_and_step(rows: BatchRows):
    scores = [1.0, 2.0, 3.0, 1.0, 2.0, 3.0]

    def copies(step: int, seed: int = 0) -> list[int]:
        spec = spec_of(resampling={}).model_copy(update={"seed": seed})
        add_advantages(spec, rows, Advantages(scores, 0.0, step=step))
        return rows.mine.copies.tolist()

    assert copies(1) == copies(1)
    assert len({tuple(copies(step)) for step in range(1, 9)}) > 4
    assert len({tuple(copies(1, seed)) for seed in range(8)}) > 4


def test_rows_that_are_left_out_are_not_drawn(rows: BatchRows):
    spec = spec_of(drops=True, resampling={"method": "max_random"})
    add_advantages(spec, rows, Advantages([1.0, 9.0, 1.0, 0.0, 5.0, 5.0], 0.0, dropped=[1, 4]))
    copies = rows.mine.copies[::2].tolist()
    assert copies[1] == copies[4] == 0
    assert sum(copies) == 4


def test_what_a_teacher_says_is_the_advantage_of_each_token(rows: BatchRows):
    """Whatever the scores are; and with more than one update old log-probabilities are those."""
    spec = spec_of(type="distillation", samplesPerPrompt=2)
    draw = torch.Generator().manual_seed(0)
    old, teacher = -torch.rand(2, 12, generator=draw)
    rows.mine.mask[:3] = False
    rows.set_column("old_logprobs", old)
    rows.set_column("ref_logprobs", teacher)
    answer = add_advantages(spec, rows, Advantages([math.nan] * 6, 0.0))
    expected = [float(t - o) for t, o in zip(teacher, old, strict=True)]
    assert rows.mine.advantages.tolist() == pytest.approx([0.0] * 3 + expected[3:])
    assert answer.told["distillation/loss"] == pytest.approx(-sum(expected[3:]) / 9)
    assert answer.zero_signal_groups == 0.0


def test_a_teacher_of_tokens_that_are_all_rejected_says_nothing(rows: BatchRows):
    """The mean of no token is NaN, as that of advantages is; the updates have zeros."""
    rejection = [{"mode": "token_k1", "low": 0.9, "high": 1.1}]
    correction = {"weights": "token", "normalize": True, "rejection": rejection}
    spec = spec_of(type="distillation", samplesPerPrompt=2, rolloutCorrection=correction)
    for name, value in {
        "old_logprobs": -3.0,
        "rollout_logprobs": 0.0,
        "ref_logprobs": -2.0,
    }.items():
        rows.set_column(name, torch.full((12,), value))
    answer = add_advantages(spec, rows, Advantages([math.nan] * 6, 0.0))
    assert math.isnan(answer.told["distillation/loss"])
    assert math.isnan(answer.advantages.mean)
    assert rows.mine.advantages.tolist() == [0.0] * 12
    assert not rows.mine.update_mask.any()
    assert rows.mine.loss_weights.isfinite().all()


def test_only_a_sampled_divergence_reads_what_was_likely_before():
    assert needs_old_logprobs(spec_of(type="distillation").algorithm)
    whole = spec_of(type="distillation", distillation={"divergence": "jsd"}, epochs=3)
    assert not needs_old_logprobs(whole.algorithm)


def test_turns_that_began_from_the_same_are_compared():
    """Tokens and images that were given tell it; a row of one turn began from its prompt."""
    turn, seen = (1, 2), (LaterImage(2, b"one"),)
    talks = [
        Trajectory(
            (Segment(turn, (-1.0,) * 2, 0), Segment(given), Segment(turn, (-1.0,) * 2, 0)),
            "stop",
            images=images,
        )
        for given, images in (
            ((7, 8), ()),
            ((7, 8), ()),
            ((7,), ()),
            ((7, 8), seen),
            ((7, 8), seen),
        )
    ]
    talks.append(Trajectory((Segment(turn, (-1.0,) * 2, 0),), "stop"))
    owned = build_rows(0, [PromptTokens(0, [3])], 6, talks)
    index = BatchIndex((1,), tuple(len(talk.tokens) for talk in talks), samples=6, owners=(0,))
    held = rows_alone(index, owned.experience)
    spec = spec_of(type="gigpo", gigpo={"gamma": 0.5, "normalizeByStd": False})
    spec = spec.model_copy(update={"agent": AgentSpec()})
    scores = [1.0, 0.0, 1.0, 4.0, 0.0, 6.0]
    answer = add_advantages(spec, held, Advantages(scores, 0.0))
    assert answer.told == {"critic/turns_compared": 10 / 11}
    first = [score / 2 for score in scores[:5]] + [6.0]
    expected = []
    for row, score in enumerate(scores):
        of_row = score - 2.0
        expected += [of_row + first[row] - sum(first) / 6] * 2
        if row < 5:
            ahead = {0: 0.5, 1: -0.5, 2: 0.0, 3: 2.0, 4: -2.0}[row]
            expected += [0.0] * (1 if row == 2 else 2) + [of_row + ahead] * 2
    assert held.mine.advantages.tolist() == pytest.approx(expected)
