"""Bypass: importance ratios to the sampler instead of the old policy."""

from dataclasses import replace

import torch

from ppojob_trainer.algorithms.policy_losses.clip import clip
from ppojob_trainer.algorithms.policy_losses.inputs import LossInputs, LossOutput, bounded


def bypass(inputs: LossInputs, *, form: str, **bounds: float) -> LossOutput:
    """The clipped loss or the policy gradient, with ratios to the sampler μ.

    `form: clip` is `clip` with ρ = π / μ (Liu et al. 2025, https://richardli.xyz/rl-collapse).
    `form: reinforce` is `L = -A log π`, weighted by a `rollout_correction` whose π is the policy in
    the update. Numbers and gradients are those of verl's `bypass_mode`, log-ratios clamped to ±20;
    `ppo_kl` is the mean of log μ - log π.
    """
    inputs = replace(inputs, old_logprobs=inputs.rollout_logprobs)
    if form == "clip":
        return clip(inputs, **bounds)
    loss = -inputs.trained(inputs.advantages) * inputs.trained(inputs.logprobs)
    zeros = torch.zeros_like(inputs.old_logprobs)
    metrics = {
        "actor/pg_clipfrac": zeros,
        "actor/pg_clipfrac_lower": zeros,
        "actor/ppo_kl": -bounded(inputs.log_ratio()).detach(),
    }
    return LossOutput(loss, metrics)
