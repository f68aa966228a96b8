import torch

from ppojob_trainer.rollout.trajectory import Segment, Trajectory
from ppojob_trainer.rpc.messages.rollout import OF_DATA, PromptTokens
from ppojob_trainer.workers.row_store import OwnedRows, build_rows, select_rows

SAMPLES = 2


def round_of(number: int, prompts: int) -> OwnedRows:
    """Row `s` of prompt `p` has `p + s + 1` tokens, all of them `100 round + 10 p + s`."""
    positions = range(2, 2 + prompts)
    rows = [
        Trajectory(
            (Segment((100 * number + 10 * p + s,) * (p + s + 1), (-0.5,) * (p + s + 1), 3),), "stop"
        )
        for p in positions
        for s in range(SAMPLES)
    ]
    asked = [PromptTokens(40 + p, [number, p]) for p in positions]
    return build_rows(2, asked, SAMPLES, rows)


def test_rows_of_the_chosen_prompts_in_the_order_of_the_batch():
    rounds = {1: round_of(1, 2), 0: round_of(0, 3)}
    batch = select_rows(rounds, [(0, 2), (0, 4), (1, 3)])
    assert [prompt.tolist() for prompt in batch.prompts] == [[0, 2], [0, 4], [1, 3]]
    assert batch.row_groups.tolist() == [0, 0, 1, 1, 2, 2]
    assert batch.lengths.tolist() == [3, 4, 5, 6, 4, 5]
    ends = batch.response_tokens[batch.offsets[1:] - 1].tolist()
    assert ends == [20, 21, 40, 41, 130, 131]
    assert batch.mask.all()
    assert torch.equal(batch.rollout_logprobs, torch.full((27,), -0.5))
    assert batch.old_logprobs is None
    nothing = select_rows(rounds, [])
    assert (nothing.num_rows, nothing.num_groups, nothing.num_tokens) == (0, 0, 0)


def test_given_responses_are_told_apart():
    given, drawn = Segment((5, 6), (), OF_DATA), Segment((7,), (-0.5,), 3)
    rows = [Trajectory((one,), "stop") for one in (given, drawn)]
    prompts = [PromptTokens(0, [1])]
    made = build_rows(0, prompts, 2, rows, has_given=True)
    assert made.experience.given is not None
    assert made.experience.given.tolist() == [True, True, False]
    assert made.experience.mask.all()
    assert made.experience.drawn.tolist() == [False, False, True]
    assert made.experience.rollout_logprobs.tolist() == [0.0, 0.0, -0.5]
    batch = select_rows({0: made, 1: made}, [(0, 0), (1, 0)])
    assert batch.given is not None
    assert batch.given.tolist() == [True, True, False] * 2
