"""PPO's clipped loss.

Notation: ρ = π(a_t|s_t) / π_old(a_t|s_t), A the advantage. Shapes: (tokens,), flat.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ppojob_trainer.algorithms.masked import zero_outside
from ppojob_trainer.algorithms.policy_losses.inputs import (
    LossInputs,
    LossOutput,
    bounded,
    check_bounds,
)


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """The clipped loss of each token and what happened to it; all (tokens,).

    Attributes:
        loss: to be minimized; the only member with a gradient.
        clipped_high: A > 0 and ρ above 1 + clip_high: the loss no longer pushes the token up.
        clipped_low: A < 0 and ρ below 1 - clip_low: the loss no longer pushes the token down.
        dual_clipped: A < 0 and ρ above the dual clip: the loss is held at -c A.
        log_ratio: log ρ, cut off at ±20, without gradient. Its negative mean is verl's `ppo_kl`.
    """

    loss: Tensor
    clipped_high: Tensor
    clipped_low: Tensor
    dual_clipped: Tensor
    log_ratio: Tensor


def clip(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float,
    mask: Tensor | None = None,
) -> TokenLoss:
    """The clipped surrogate loss of PPO.

    PPO (arXiv:1707.06347), equation 7: `L = max(-A ρ, -A clip(ρ, 1 - clip_low, 1 + clip_high))`.
    Different bounds on the two sides are DAPO's clip-higher (arXiv:2503.14476), equation 10. Dual
    clip (arXiv:1912.09729), equation 5: where A < 0, `L = min(L, -A c)`, so that one token of a
    large ratio cannot dominate the step.

    Numbers and gradients are those of verl's `vanilla` loss. verl's metrics: `pg_clipfrac` is the
    share of `clipped_high | clipped_low`, `pg_clipfrac_lower` that of `dual_clipped`.

    Args:
        logprobs: (tokens,) log π, with gradient.
        old_logprobs: (tokens,) log π_old.
        advantages: (tokens,) A.
        clip_low: how far the ratio may fall below 1.
        clip_high: how far the ratio may rise above 1.
        dual_clip: c > 1, or 0 for no dual clip.
        mask: (tokens,) bool; where False the loss is 0 and has no gradient, whatever the columns
            hold there. None: every token is trained.

    Raises:
        ValueError: if a bound is negative or `dual_clip` is neither 0 nor above 1.
    """
    check_bounds(clip_low, clip_high)
    _check_dual_clip(dual_clip)
    advantages = zero_outside(advantages, mask)
    log_ratio = zero_outside(logprobs, mask) - zero_outside(old_logprobs, mask)
    log_ratio = bounded(log_ratio)
    ratio = log_ratio.exp()
    within = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    loss = torch.maximum(-advantages * ratio, -advantages * within)
    negative = advantages < 0.0
    dual_clipped = torch.zeros_like(negative)
    if dual_clip:
        ceiling = -advantages * dual_clip
        dual_clipped = negative & (loss > ceiling)
        loss = torch.where(negative, torch.minimum(loss, ceiling), loss)
    return TokenLoss(
        loss=loss,
        clipped_high=(advantages > 0.0) & (ratio > within),
        clipped_low=negative & (ratio < within),
        dual_clipped=dual_clipped,
        log_ratio=log_ratio.detach(),
    )


def _check_dual_clip(dual_clip: float) -> None:
    if dual_clip != 0.0 and not dual_clip > 1.0:
        raise ValueError(
            f"dual_clip: got {dual_clip}: it bounds ratios above 1; must be above 1, or 0 for none"
        )


def clip_loss(inputs: LossInputs, **bounds: float) -> LossOutput:
    """`clip` as a row of the table.

    Args:
        inputs: of the micro-batch.
        bounds: `clip_low`, `clip_high` and `dual_clip`.
    """
    found = clip(
        inputs.logprobs, inputs.old_logprobs, inputs.advantages, mask=inputs.mask, **bounds
    )
    metrics = {
        "actor/pg_clipfrac": (found.clipped_high | found.clipped_low).float(),
        "actor/pg_clipfrac_lower": found.dual_clipped.float(),
        "actor/ppo_kl": -found.log_ratio,
    }
    return LossOutput(found.loss, metrics)
