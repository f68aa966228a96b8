"""Which tokens of bad responses the policy has left behind."""

from typing import Any

import pytest
import torch
from ragged_batches import DTYPES
from verl_batches import TRL, advantages_of_trl, stored_batches

from ppojob_trainer.algorithms.off_policy_mask import off_policy


def test_by_hand():
    # The policy finds the first response less likely by 0.6 nats a trained token, the other by 0.4.
    sampled = torch.full((6,), -1.0)
    policy = sampled - torch.tensor([1.0, 0.2, 90.0, 0.4, 0.4, 0.4])
    mask = torch.tensor([True, True, False, True, True, True])
    for advantages, left_out in (
        ([-1.0] * 6, [True, True, False, False, False, False]),
        ([-1.0, 1.0, -1.0, -1.0, 1.0, 0.0], [True, False, False, False, False, False]),
        ([1.0] * 6, [False] * 6),
    ):
        lengths = torch.tensor([3, 3])
        found = off_policy(policy, sampled, torch.tensor(advantages), mask, lengths, 0.5)
        assert found.tolist() == left_out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", TRL["off_policy_masks"], ids=lambda case: case["threshold"])
def test_numbers_of_trl(case: dict[str, Any], dtype: torch.dtype):
    """TRL keeps or drops whole responses, which have one advantage there."""
    for number, stored in enumerate(stored_batches(dtype)):
        columns = (stored["logprobs"], stored["rollout_logprobs"])
        advantages = advantages_of_trl(number, stored, dtype)
        found = off_policy(*columns, advantages, stored.mask, stored.lengths, case["threshold"])
        kept = torch.tensor([bool(k) for k in case["kept"][number]])
        dropped = ~kept.repeat_interleave(stored.lengths) & stored.mask
        assert found.tolist() == dropped.tolist()
