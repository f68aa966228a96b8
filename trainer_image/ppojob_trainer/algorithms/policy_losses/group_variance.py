"""GVPO and trajectory balance: how far the responses of a prompt are from their mean.

Both make the log-ratio of a whole response to π_0 equal to A / β, up to a constant of the prompt:
the policy is then `π_0 exp(A / β) / Z`, the best one under a KL to π_0. The mean of the group, of
the policy in the update, stands for log Z; so no baseline of the prompt in A changes anything.
"""

import torch
from torch import Tensor

from ppojob_trainer.algorithms.masked import row_mean, row_sum, rows_with_any, segment_sum
from ppojob_trainer.algorithms.policy_losses.inputs import LossInputs, LossOutput, bounded


def gvpo(inputs: LossInputs, *, beta: float) -> LossOutput:
    """Half the variance within a group of what the policy says of rewards less the rewards.

    GVPO (arXiv:2504.19599): with `d = β Σ_t log ρ_t - A` of a row, over its trained tokens, and n
    rows in its group, `L = 1/2 (d - sg(mean_g d))² n / (n - 1)`. A is its mean over the row. The
    gradient through the mean of a group would be 0.

    Numbers and gradients are those of verl's recipe, as a mean over responses of whole groups.
    """
    log_ratio = inputs.log_ratio()
    distances = beta * _of_rows(log_ratio, inputs) - _rewards(inputs)
    means, sizes = _of_groups(distances, inputs)
    loss = 0.5 * (distances - means).square() * sizes / (sizes - 1.0).clamp(min=1.0)
    return LossOutput(_to_tokens(loss, inputs), {"actor/ppo_kl": -bounded(log_ratio).detach()})


def trajectory_balance(inputs: LossInputs, *, beta: float) -> LossOutput:
    """The squared error of the balance between policy, reference and reward.

    TBA (arXiv:2503.18929), trajectory balance in the form of VarGrad: with
    `d = Σ_t (log π_t - log π_ref,t) - A / β` of a row, over its trained tokens,
    `L = (log Z + d)²`, `log Z = -sg(mean_g d)`. A is its mean over the row.
    """
    assert inputs.ref_logprobs is not None, "the reference comes before the update"
    log_ratio = inputs.trained(inputs.logprobs) - inputs.trained(inputs.ref_logprobs)
    distances = _of_rows(log_ratio, inputs) - _rewards(inputs) / beta
    means, _ = _of_groups(distances, inputs)
    metrics = {
        "actor/ppo_kl": -bounded(inputs.log_ratio()).detach(),
        "actor/log_z": _to_tokens(-means, inputs),
    }
    return LossOutput(_to_tokens((distances - means).square(), inputs), metrics)


def _of_rows(log_ratio: Tensor, inputs: LossInputs) -> Tensor:
    """(rows,) float64, that of each response."""
    return row_sum(log_ratio.double(), inputs.mask, inputs.lengths)


def _rewards(inputs: LossInputs) -> Tensor:
    """(rows,) float64, A of each response."""
    return row_mean(inputs.advantages.double(), inputs.mask, inputs.lengths)


def _of_groups(values: Tensor, inputs: LossInputs) -> tuple[Tensor, Tensor]:
    """The mean of each row's group, without gradient, and how many rows that has: (rows,) each.

    Rows without a trained token are in no group, and have 0 and 1.
    """
    rows = rows_with_any(inputs.mask, inputs.lengths)
    rows = rows[torch.argsort(inputs.groups[rows], stable=True)]
    _, sizes = torch.unique_consecutive(inputs.groups[rows], return_counts=True)
    means, counts = torch.zeros_like(values), torch.ones_like(values)
    of_groups = segment_sum(values.detach()[rows], sizes) / sizes
    means[rows] = of_groups.repeat_interleave(sizes)
    counts[rows] = sizes.repeat_interleave(sizes).to(values.dtype)
    return means, counts


def _to_tokens(values: Tensor, inputs: LossInputs) -> Tensor:
    """Each row's number at its trained tokens: (rows,) -> (tokens,), as exact as those are."""
    tokens = values.to(inputs.logprobs.dtype).repeat_interleave(inputs.lengths)
    return inputs.trained(tokens)
