"""Value loss of a critic per token, before `aggregate`, and its explained variance.

Notation: V the critic's value, V_old its value before the update, R the return. Shapes: (tokens,),
flat.
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
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Half the squared error of a value, with no gain from moving it further than the clip.

    `L = 1/2 max((V - R)², (clip(V, V_old - c, V_old + c) - R)²)`: the value loss of PPO's reference
    implementation (github.com/openai/baselines, ppo2); PPO (arXiv:1707.06347), equation 9, has it
    without the clip.

    Numbers and gradients are those of verl's `compute_value_loss`; its `vf_clipfrac` is the share
    of clipped tokens.

    c is `value_clip`. Where the mask is False the loss is 0 and has no gradient, whatever the
    columns hold there; without a mask every token is trained.

    Returns:
        (tokens,) the loss, and bool: V moved beyond the clip, and the loss has no gradient.
    """
    values, old, returns = (zero_outside(x, mask) for x in (values, old_values, returns))
    bounded = values.clamp(old - value_clip, old + value_clip)
    plain, clipped = (values - returns).square(), (bounded - returns).square()
    return 0.5 * torch.maximum(plain, clipped), clipped > plain


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor) -> Tensor:
    """Tell how much of the returns a critic foretold.

    `1 - Var[R - V] / Var[R]` over the trained tokens: 1 is everything, 0 no more than a constant
    does, below 0 less than that.

    Departs from verl: it adds 1e-5 to Var[R]; here returns that are all equal give 0.

    The values are those that the returns were estimated with.
    """
    known, wanted = (column.to(torch.float64)[mask] for column in (values, returns))
    unexplained, whole = _squared_deviations(wanted - known), _squared_deviations(wanted)
    return torch.where(whole > 0.0, 1.0 - unexplained / whole, 0.0).to(values.dtype)


def _squared_deviations(x: Tensor) -> Tensor:
    """Variance of a column times its length; 0 where it is empty."""
    return (x - x.sum() / max(1, x.numel())).square().sum()
