"""Turn-level advantages of multi-turn responses.

Notation as in `advantages`. A turn is a run of trained tokens. Turns of a group that have the same
tokens before them (`anchor`) are in the same state, and are compared with each other.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ppojob_trainer.algorithms.advantages import Advantages, GroupScores, grpo
from ppojob_trainer.algorithms.masked import discounted_sum, segment_sum


@dataclass(frozen=True, slots=True)
class Turns:
    """The turns of the rows of a step, in order."""

    lengths: Tensor  # (turns,) int64, trained tokens of each
    of_row: Tensor  # (rows,) int64, turns of each row
    states: Tensor  # (turns,) int64, equal where group and anchor are

    @classmethod
    def of(cls, mask: Tensor, lengths: Tensor, groups: Tensor, anchors: Tensor) -> "Turns":
        """Find the turns; `anchors` (tokens,) int64 has the anchor at the first token of each."""
        rows = torch.arange(lengths.numel()).repeat_interleave(lengths)
        follows = torch.zeros_like(mask)  # a trained token of the same row
        follows[1:] = mask[:-1] & (rows[1:] == rows[:-1])
        begins = mask & ~follows
        numbers = begins.cumsum(0)[mask] - 1
        count = int(begins.sum())
        _, anchor = torch.unique(anchors[begins], return_inverse=True)
        _, states = torch.unique(groups[rows[begins]] * count + anchor, return_inverse=True)
        return cls(
            torch.bincount(numbers, minlength=count),
            torch.bincount(rows[begins], minlength=lengths.numel()),
            states,
        )

    @property
    def shared(self) -> float:
        """Return the share of turns that have another turn in their state."""
        counts = torch.bincount(self.states)[self.states]
        return int((counts > 1).sum()) / max(1, counts.numel())


@torch.no_grad()
def gigpo(
    token_rewards: Tensor,
    mask: Tensor,
    lengths: Tensor,
    groups: Tensor,
    *,
    turns: Turns,
    turn_weight: float = 1.0,
    gamma: float = 0.95,
    normalize_by_std: bool = True,
    kept: Tensor | None = None,
) -> Advantages:
    """Group-relative advantage of the row, plus that of the turn within its state.

    GiGPO (arXiv:2505.10978), section 4, equations 3 to 8: with r_k the reward of turn k of a row
    and G_k = Σ_{j≥k} γ^{j-k} r_j, `A = (s - mean_g) / (std_g + 1e-6) + w (G_k - mean_state) /
    (std_state + 1e-6)` with unbiased standard deviations; without the divisions it is the paper's
    F_norm = 1. A turn alone in its state adds nothing; a row alone in its group keeps its score, as
    in `grpo`.

    `turns` are those of `mask`; `kept` as in `advantages`.
    """
    kept = mask if kept is None else kept
    scores = GroupScores.of(token_rewards, mask, lengths, groups, kept)
    total = scores.to_tokens(grpo(scores, normalize_by_std=normalize_by_std))
    rewards = segment_sum(token_rewards.to(torch.float64)[mask], turns.lengths)
    placed = rewards.new_zeros(int(mask.sum()))
    ends = turns.lengths.cumsum(0) - 1
    placed[ends] = discounted_sum(rewards, turns.of_row, gamma)
    trained = torch.ones(placed.shape, dtype=torch.bool)
    states = GroupScores.of(placed, trained, turns.lengths, turns.states, kept[mask])
    ahead = grpo(states, normalize_by_std=normalize_by_std)
    ahead = torch.where(states.alone, 0.0, ahead)
    total[mask] += turn_weight * states.to_tokens(ahead)
    result = total.to(token_rewards.dtype)
    return Advantages(result, result)


TURN_ADVANTAGES = {"gigpo": gigpo}
"""Estimators that compare turns, by `spec.algorithm.type`."""
