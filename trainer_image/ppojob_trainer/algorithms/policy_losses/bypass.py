"""Bypass: importance ratios to the sampler instead of the old policy."""

from dataclasses import replace

import torch

from ppojob_trainer.algorithms.policy_losses.clip import clip
from ppojob_trainer.algorithms.policy_losses.inputs import LossInputs, LossOutput, bounded


def bypass(inputs: LossInputs, *, form: str, **bounds: float) -> LossOutput:
    """The clipped loss, or the policy gradient, against the sampler μ.

    An engine's numbers are not the trainer's, so what drew the tokens is μ and not π_old (Liu et
    al. 2025, https://richardli.xyz/rl-collapse). With `form: clip` it is `clip` with π / μ for ρ,
    which corrects for both at once. With `form: reinforce`, `L = -A log π`, to be multiplied by the
    weights of a `rollout_correction` whose π is the policy in the update.

    Numbers and gradients are those of verl's `bypass_mode`, log-ratios cut off at ±20. `ppo_kl` is
    the mean of log μ - log π.
    """
    inputs = replace(inputs, old_logprobs=inputs.rollout_logprobs)
    if form == "clip":
        return clip(inputs, **bounds)
    loss = -inputs.trained(inputs.advantages) * inputs.trained(inputs.logprobs)
    nothing = torch.zeros_like(inputs.old_logprobs)
    metrics = {
        "actor/pg_clipfrac": nothing,
        "actor/pg_clipfrac_lower": nothing,
        "actor/ppo_kl": -bounded(inputs.log_ratio()).detach(),
    }
    return LossOutput(loss, metrics)
