"""Value loss of a critic per token, before `aggregate`, and its explained variance.

Notation: V the critic's value, V_old its value before the update, R the return; (tokens,), flat.
"""

import torch
from torch import Tensor

from ppojob_trainer.algorithms.masked import zero_outside


def clipped_value_loss(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    *,
    value_clip: float,
    mask: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return half the squared error of values, clipped, and where the clip decides: (tokens,) each.

    `L = 1/2 max((V - R)², (clip(V, V_old - c, V_old + c) - R)²)`, c the `value_clip`: the value
    loss of PPO's reference implementation (github.com/openai/baselines, ppo2); PPO
    (arXiv:1707.06347), equation 9, has no clip. Numbers and gradients are those of verl's
    `compute_value_loss`; its `vf_clipfrac` is the share of clipped tokens. Masked tokens give 0
    without gradient.
    """
    values, old, returns = (zero_outside(x, mask) for x in (values, old_values, returns))
    bounded = values.clamp(old - value_clip, old + value_clip)
    plain, clipped = (values - returns).square(), (bounded - returns).square()
    return 0.5 * torch.maximum(plain, clipped), clipped > plain


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor) -> Tensor:
    """Return the explained variance of the returns, `1 - Var[R - V] / Var[R]`, over trained tokens.

    `values` are those that the returns were estimated with. Departs from verl, which adds 1e-5 to
    Var[R]: equal returns give 0.
    """
    known, wanted = (column.to(torch.float64)[mask] for column in (values, returns))
    unexplained, whole = _squared_deviations(wanted - known), _squared_deviations(wanted)
    return torch.where(whole > 0.0, 1.0 - unexplained / whole, 0.0).to(values.dtype)


def _squared_deviations(x: Tensor) -> Tensor:
    """Return the variance times the length; 0 for an empty column."""
    return (x - x.sum() / max(1, x.numel())).square().sum()
