"""Which tokens of bad responses the policy has left behind."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from correction_comparison import compare_off_policy
from ragged_batches import DTYPES, Batch, for_any_batch

from ppojob_trainer.algorithms import off_policy_mask
from ppojob_trainer.algorithms.off_policy_mask import off_policy

FOLDER = Path(__file__).parent
BATCHES = json.loads((FOLDER / "verl_numbers.json").read_text(encoding="utf-8"))["batches"]
OF_TRL = json.loads((FOLDER / "trl_numbers.json").read_text(encoding="utf-8"))


@for_any_batch
def test_equal_to_the_literal_form(batch: Batch):
    for dtype in DTYPES:
        compare_off_policy(off_policy_mask, batch, dtype)


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
@pytest.mark.parametrize("case", OF_TRL["off_policy_masks"], ids=lambda case: case["threshold"])
def test_numbers_of_trl(case: dict[str, Any], dtype: torch.dtype):
    """TRL keeps or drops whole responses, which have one advantage there."""
    for number, batch in enumerate(BATCHES):
        columns = [
            torch.tensor([value / 64 for row in batch[name] for value in row], dtype=dtype)
            for name in ("logprobs", "rollout_logprobs")
        ]
        mask = torch.tensor([bool(m) for row in batch["mask"] for m in row])
        lengths = torch.tensor([len(row) for row in batch["mask"]])
        advantages = torch.tensor(OF_TRL["advantages"][number], dtype=dtype)
        found = off_policy(
            *columns, advantages.repeat_interleave(lengths), mask, lengths, case["threshold"]
        )
        kept = torch.tensor([bool(k) for k in case["kept"][number]]).repeat_interleave(lengths)
        assert found.tolist() == (~kept & mask).tolist()
