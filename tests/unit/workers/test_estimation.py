import pytest
import torch
from lone_role import Alone, grpo_spec

from ppojob_trainer.rollout.trajectory import Segment, Trajectory
from ppojob_trainer.rows.batch_index import BatchIndex
from ppojob_trainer.rows.experience import Experience
from ppojob_trainer.rpc.messages import PromptTokens
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


def test_groups_of_equal_scores_give_no_signal(rows: BatchRows):
    assert add_advantages(SPEC, rows, [1, 0, 1, 1, 0, 0], 0.0).zero_signal_groups == 2 / 3
    assert add_advantages(SPEC, rows, [1, 0, 1, 0, 0, 1], 0.0).zero_signal_groups == 0.0


def test_a_group_whose_signal_lies_on_no_trained_token_gives_none(rows: BatchRows):
    rows.mine.mask[:4] = False
    assert add_advantages(SPEC, rows, [1, 0, 1, 0, 0, 1], 0.0).zero_signal_groups == 1 / 3


def test_tokens_of_a_rank_count_the_prompt_once_a_row(rows: BatchRows):
    answer = add_advantages(SPEC, rows, [1, 0, 1, 1, 0, 0], 0.0)
    assert answer.tokens_owned == answer.tokens_computed == [2 * (4 + 5 + 6) + 12]


def test_a_row_that_ends_in_tokens_of_others_keeps_its_score(rows: BatchRows):
    rows.mine.mask[[1, 5, 6, 7]] = False  # of row 0 and 2 the last token, of row 3 both
    answer = add_advantages(SPEC, rows, [3, 1, 2, 9, 0, 5], 0.0)
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
    answer = add_advantages(SPEC, batch, [4, 1], 0.0)
    assert owned.token_rewards is not None
    assert owned.token_rewards.tolist() == [0, 0.5, 0, 0.25 + 2 + 4, 0, 0, 0, 1]
    assert answer.row_rewards == [6.75, 1]
