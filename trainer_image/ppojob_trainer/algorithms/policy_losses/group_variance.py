"""GVPO and trajectory balance: the variance of responses within the group of a prompt.

Both fit the log-ratio of a response to π_0 to A / β, up to a constant per prompt: the policy is
then `π_0 exp(A / β) / Z`, the optimum under a KL to π_0. The mean of the group estimates log Z, so
baselines of the prompt in A have no effect.
"""

import torch
from torch import Tensor

from ppojob_trainer.algorithms.masked import row_mean, row_sum, rows_with_any, segment_sum
from ppojob_trainer.algorithms.policy_losses.inputs import LossInputs, LossOutput, bounded


def gvpo(inputs: LossInputs, *, beta: float) -> LossOutput:
    """Half the variance within a group of scaled log-ratios minus advantages.

    GVPO (arXiv:2504.19599): with `d = β Σ_t log ρ_t - A` of a row, over its trained tokens, and n
    rows in its group, `L = 1/2 (d - sg(mean_g d))² n / (n - 1)`, A the row's mean advantage.
    Numbers and gradients are those of verl's recipe, as a mean over responses of whole groups.
    """
    log_ratio = inputs.log_ratio()
    distances = beta * _of_rows(log_ratio, inputs) - _rewards(inputs)
    means, sizes = _of_groups(distances, inputs)
    loss = 0.5 * (distances - means).square() * sizes / (sizes - 1.0).clamp(min=1.0)
    return LossOutput(_to_tokens(loss, inputs), {"actor/ppo_kl": -bounded(log_ratio).detach()})


def trajectory_balance(inputs: LossInputs, *, beta: float) -> LossOutput:
    """The squared error of the balance between policy, reference and reward.

    TBA (arXiv:2503.18929), trajectory balance in the form of VarGrad: with `d = Σ_t (log π_t - log
    π_ref,t) - A / β` of a row, over its trained tokens, `L = (log Z + d)²`, `log Z = -sg(mean_g
    d)`, A the row's mean advantage.
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
    """Return (rows,) float64 sums over the trained tokens."""
    return row_sum(log_ratio.double(), inputs.mask, inputs.lengths)


def _rewards(inputs: LossInputs) -> Tensor:
    """Return (rows,) float64, the mean advantage of each row."""
    return row_mean(inputs.advantages.double(), inputs.mask, inputs.lengths)


def _of_groups(values: Tensor, inputs: LossInputs) -> tuple[Tensor, Tensor]:
    """Return the mean (no gradient) and the number of rows of each row's group, (rows,) each.

    Rows without a trained token get 0 and 1.
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
    """Expand row values to the trained tokens: (rows,) -> (tokens,), in the dtype of those."""
    tokens = values.to(inputs.logprobs.dtype).repeat_interleave(inputs.lengths)
    return inputs.trained(tokens)
