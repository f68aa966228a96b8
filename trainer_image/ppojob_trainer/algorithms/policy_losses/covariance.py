"""Clip-Cov and KL-Cov: restrain the few tokens that cause entropy collapse.

The Entropy Mechanism (arXiv:2505.22617): entropy falls with the covariance of log-probability and
advantage, `cov_t = (A_t - mean A) (log π_t - mean log π)`, means over the trained tokens. Means and
shares are those of the micro-batch, as in verl, so the chosen tokens depend on how a mini-batch is
split.
"""

import torch
from torch import Tensor

from ppojob_trainer.algorithms.policy_losses.inputs import LossInputs, LossOutput, bounded


def clip_cov(
    inputs: LossInputs,
    *,
    share: float,
    covariance_low: float,
    covariance_high: float,
    clip_low: float,
    clip_high: float,
) -> LossOutput:
    """The clipped loss, without the loss of some tokens of high covariance.

    Of the tokens that are not clipped and whose covariance is within the bounds, `share` of all
    trained tokens, at least one, are drawn by torch's global generator; their loss is 0.

    Departs from verl: the log-ratio is clamped to ±20; `pg_clipfrac` is the share of clipped
    tokens, where verl's is that of the drawn ones, here `pg_covfrac`.
    """
    advantages, log_ratio = inputs.trained(inputs.advantages), bounded(inputs.log_ratio())
    ratio = log_ratio.exp()
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    is_clipped = clipped > plain
    covariance = _covariances(inputs)
    between = (covariance > covariance_low) & (covariance < covariance_high)
    candidates = (between & inputs.mask & ~is_clipped).nonzero()[:, 0]
    order = torch.randperm(len(candidates)).to(candidates.device)
    is_drawn = _at(candidates[order[: _count(inputs, share)]], inputs.mask)
    metrics = {
        "actor/pg_clipfrac": is_clipped.float(),
        "actor/pg_covfrac": is_drawn.float(),
        "actor/ppo_kl": -log_ratio.detach(),
    }
    return LossOutput(torch.where(is_drawn, 0.0, torch.maximum(plain, clipped)), metrics)


def kl_cov(inputs: LossInputs, *, share: float, coefficient: float) -> LossOutput:
    """The surrogate, with a penalty on the tokens of the highest covariance.

    `L = -A ρ`, and `L = -A ρ + coefficient |log ρ|` for `share` of the trained tokens, at least
    one, of the highest covariance; of equal ones the first in row order.

    Departs from verl: the log-ratio is clamped to ±20; `ppo_kl` is the mean of -log ρ, where verl's
    is that of |log ρ|.
    """
    log_ratio = bounded(inputs.log_ratio())
    loss = -inputs.trained(inputs.advantages) * log_ratio.exp()
    trained = inputs.mask.nonzero()[:, 0]
    highest = _covariances(inputs)[trained].sort(descending=True, stable=True).indices
    is_chosen = _at(trained[highest[: _count(inputs, share)]], inputs.mask)
    loss = loss + torch.where(is_chosen, coefficient * log_ratio.abs(), 0.0)
    metrics = {"actor/pg_covfrac": is_chosen.float(), "actor/ppo_kl": -log_ratio.detach()}
    return LossOutput(loss, metrics)


def _covariances(inputs: LossInputs) -> Tensor:
    """Return (tokens,) covariances without gradient; 0 at masked tokens."""
    columns = []
    for column in (inputs.advantages, inputs.logprobs):
        trained = inputs.trained(column.detach())
        columns.append(trained - trained.sum() / inputs.mask.sum().clamp(min=1))
    return inputs.trained(columns[0] * columns[1])


def _count(inputs: LossInputs, share: float) -> int:
    return max(1, int(share * int(inputs.mask.sum())))


def _at(positions: Tensor, mask: Tensor) -> Tensor:
    return torch.zeros_like(mask).index_fill(0, positions, value=True)
