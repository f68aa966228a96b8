"""CISPO: the importance weight is clipped, and every token has a gradient."""

from ppojob_trainer.algorithms.policy_losses.inputs import LossInputs, LossOutput, bounded


def cispo(inputs: LossInputs, *, clip_low: float, clip_high: float) -> LossOutput:
    """The policy gradient, weighted by the clipped ratio.

    MiniMax-M1 (arXiv:2506.13585), equations 4 and 5: `L = -sg(clip(ρ, 1 - clip_low, 1 + clip_high))
    A log π`. Numbers and gradients are those of verl's `cispo`, the log-ratio clamped to ±20.
    """
    log_ratio = bounded(inputs.log_ratio()).detach()
    ratio = log_ratio.exp()
    weight = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    loss = -weight * inputs.trained(inputs.advantages) * inputs.trained(inputs.logprobs)
    metrics = {"actor/pg_clipfrac": (ratio != weight).float(), "actor/ppo_kl": -log_ratio}
    return LossOutput(loss, metrics)
