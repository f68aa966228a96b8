"""Which tokens have the highest entropy of a batch."""

import pytest
import torch

from ppojob_trainer.algorithms.entropy_mask import high_entropy


@pytest.mark.parametrize(
    ("share", "chosen"),
    [(0.2, [4]), (0.4, [1, 4]), (0.6, [1, 2, 3, 4]), (1.0, [0, 1, 2, 3, 4])],
)
def test_by_hand(share: float, chosen: list[int]):
    entropies = torch.tensor([0.1, 0.7, 0.5, 0.5, 0.9, 2.0])
    mask = torch.tensor([True] * 5 + [False])
    assert high_entropy(entropies, mask, share)[0].nonzero()[:, 0].tolist() == chosen
