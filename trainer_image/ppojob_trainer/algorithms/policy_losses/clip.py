"""PPO's clipped loss."""

import torch

from ppojob_trainer.algorithms.policy_losses.inputs import LossInputs, LossOutput, bounded


def clip(inputs: LossInputs, *, clip_low: float, clip_high: float, dual_clip: float) -> LossOutput:
    """The clipped surrogate loss of PPO.

    PPO (arXiv:1707.06347), equation 7: `L = max(-A ρ, -A clip(ρ, 1 - clip_low, 1 + clip_high))`.
    Different bounds are DAPO's clip-higher (arXiv:2503.14476), equation 10. Dual clip
    (arXiv:1912.09729), equation 5: `L = min(L, -A dual_clip)` where A < 0; off if 0.

    Numbers, metrics and gradients are those of verl's `vanilla` loss, the log-ratio clamped to ±20.
    """
    advantages, log_ratio = inputs.trained(inputs.advantages), bounded(inputs.log_ratio())
    ratio = log_ratio.exp()
    within = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    loss = torch.maximum(-advantages * ratio, -advantages * within)
    negative = advantages < 0.0
    is_clipped = ((advantages > 0.0) & (ratio > within)) | (negative & (ratio < within))
    is_dual_clipped = torch.zeros_like(negative)
    if dual_clip:
        ceiling = -advantages * dual_clip
        is_dual_clipped = negative & (loss > ceiling)
        loss = torch.where(negative, torch.minimum(loss, ceiling), loss)
    metrics = {
        "actor/pg_clipfrac": is_clipped.float(),
        "actor/pg_clipfrac_lower": is_dual_clipped.float(),
        "actor/ppo_kl": -log_ratio.detach(),
    }
    return LossOutput(loss, metrics)
