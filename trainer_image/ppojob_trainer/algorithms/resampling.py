"""Resampling of responses for updates, by their scores."""

from typing import Literal

import torch
from torch import Tensor

LEAST_WEIGHT = 1e-8
"""Added to every weight, as in verl, so that any response may be drawn."""

BEST, OTHERS = 0.4, 0.1
"""Weights of `max_random`, as in verl."""

Method = Literal["pow", "max_min", "max_random"]


def resampling_weights(
    scores: Tensor, is_trained: Tensor, *, method: Method, power: float
) -> Tensor:
    """Return unnormalized sampling weights of responses, (rows,) float64.

    PF-PPO (arXiv:2409.06957): updates use more often the responses whose reward is reliable.

    | method     | weight of a score s                            |
    |------------|------------------------------------------------|
    | pow        | |s|^power                                      |
    | max_min    | 1 for the largest and the smallest s, 0 else   |
    | max_random | 0.4 for the largest s, 0.1 else                |

    Numbers are those of verl's `compute_pf_ppo_reweight_data`. `scores` (rows,) are those of the
    whole batch. A response that is not `is_trained` (rows,) has weight 0; verl draws it too.
    """
    scores = scores.to(torch.float64)
    if method == "pow":
        weights = scores.abs().pow(power)
    else:
        candidates = scores[is_trained]
        is_best = scores == candidates.max() if len(candidates) else is_trained
        if method == "max_random":
            weights = torch.full_like(scores, OTHERS).masked_fill(is_best, BEST)
        else:
            is_worst = scores == candidates.min() if len(candidates) else is_trained
            weights = (is_best | is_worst).to(torch.float64)
    return torch.where(is_trained, weights + LEAST_WEIGHT, 0.0)


def drawn(weights: Tensor, draws: Tensor) -> Tensor:
    """Draw with replacement as many responses as have a weight; return (rows,) int64 counts.

    Weights are (rows,) float64. Draws are (rows,) float64, uniform in [0, 1); as many as needed are
    used.
    """
    (candidates,) = weights.nonzero(as_tuple=True)
    borders = weights[candidates].cumsum(0)
    if len(candidates) == 0:
        return torch.zeros(len(weights), dtype=torch.int64)
    at = torch.searchsorted(borders, draws[: len(candidates)] * borders[-1], right=True)
    chosen = candidates[at.clamp(max=len(candidates) - 1)]
    return torch.bincount(chosen, minlength=len(weights))
