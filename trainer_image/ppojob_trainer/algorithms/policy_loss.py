"""Policy-gradient losses of single tokens, before they are added up by `aggregate`.

Notation: ρ = π(a_t|s_t) / π_old(a_t|s_t), A the advantage. Shapes: (tokens,), flat.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ppojob_trainer.algorithms.masked import zero_outside

LOG_RATIO_LIMIT = 20.0
"""Absolute log-ratio beyond which it is cut off, with no gradient, so that ratios stay finite."""


@dataclass(frozen=True, slots=True)
class LossInputs:
    """All that a loss may read of a micro-batch: `tokens` tokens of `rows` responses.

    Attributes:
        logprobs: (tokens,) log π, with gradient.
        old_logprobs: (tokens,) log π_old.
        rollout_logprobs: (tokens,) log μ of the engine that drew the tokens.
        advantages: (tokens,) A.
        mask: (tokens,) bool, True where the token is trained.
        lengths: (rows,) int64, tokens of each response.
        groups: (rows,) int64, the prompt of each response.
    """

    logprobs: Tensor
    old_logprobs: Tensor
    rollout_logprobs: Tensor
    advantages: Tensor
    mask: Tensor
    lengths: Tensor
    groups: Tensor


@dataclass(frozen=True, slots=True)
class LossOutput:
    """What a loss gives back.

    Attributes:
        loss: (tokens,) to be minimized, with gradient; 0 where `mask` is False.
        metrics: (tokens,) each, without gradient, by the name of the metric that is their mean.
    """

    loss: Tensor
    metrics: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """A policy loss of `POLICY_LOSSES`.

    Attributes:
        compute: from `LossInputs` and the options of `spec.algorithm.policyLoss` to `LossOutput`.
        metrics: names of what `LossOutput.metrics` holds: a rank without rows has to know them.
        vanishes_without_advantage: a row whose advantages are all zero has no gradient, so an
            update may leave it out.
    """

    compute: Callable[..., LossOutput]
    metrics: tuple[str, ...]
    vanishes_without_advantage: bool = True


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
    _check_bounds(clip_low, clip_high, dual_clip)
    advantages = zero_outside(advantages, mask)
    log_ratio = zero_outside(logprobs, mask) - zero_outside(old_logprobs, mask)
    log_ratio = log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    ratio = log_ratio.exp()
    bounded = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    loss = torch.maximum(-advantages * ratio, -advantages * bounded)
    negative = advantages < 0.0
    dual_clipped = torch.zeros_like(negative)
    if dual_clip:
        ceiling = -advantages * dual_clip
        dual_clipped = negative & (loss > ceiling)
        loss = torch.where(negative, torch.minimum(loss, ceiling), loss)
    return TokenLoss(
        loss=loss,
        clipped_high=(advantages > 0.0) & (ratio > bounded),
        clipped_low=negative & (ratio < bounded),
        dual_clipped=dual_clipped,
        log_ratio=log_ratio.detach(),
    )


def _check_bounds(clip_low: float, clip_high: float, dual_clip: float) -> None:
    if min(clip_low, clip_high) < 0.0:
        raise ValueError(
            f"clip_low, clip_high: got {clip_low}, {clip_high}: a clip range holds 1; "
            "both must be 0 or more"
        )
    if dual_clip != 0.0 and not dual_clip > 1.0:
        raise ValueError(
            f"dual_clip: got {dual_clip}: it bounds ratios above 1; must be above 1, or 0 for none"
        )


def _clip_loss(inputs: LossInputs, **bounds: float) -> LossOutput:
    found = clip(
        inputs.logprobs, inputs.old_logprobs, inputs.advantages, mask=inputs.mask, **bounds
    )
    metrics = {
        "actor/pg_clipfrac": (found.clipped_high | found.clipped_low).float(),
        "actor/pg_clipfrac_lower": found.dual_clipped.float(),
        "actor/ppo_kl": -found.log_ratio,
    }
    return LossOutput(found.loss, metrics)


POLICY_LOSSES: dict[str, PolicyLoss] = {
    "clip": PolicyLoss(_clip_loss, ("actor/pg_clipfrac", "actor/pg_clipfrac_lower", "actor/ppo_kl"))
}
"""Every policy loss by the name of `spec.algorithm.policyLoss.type`."""
