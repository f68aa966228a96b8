"""Bypass: corrects for the engine that drew the tokens, and not for the policy before the step."""

from dataclasses import replace

import torch
from torch import Tensor

from ppojob_trainer.algorithms.masked import row_sum
from ppojob_trainer.algorithms.policy_losses.clip import clip_loss
from ppojob_trainer.algorithms.policy_losses.inputs import LossInputs, LossOutput, bounded


def bypass(
    inputs: LossInputs, *, form: str, weights: str, weight_limit: float, **bounds: float
) -> LossOutput:
    """The clipped loss, or the weighted policy gradient, against the sampler μ.

    An engine's numbers are not the trainer's, so what drew the tokens is μ and not π_old (Liu et
    al. 2025, https://richardli.xyz/rl-collapse). With `form: clip` it is `clip` with π / μ for ρ,
    which corrects for both at once. With `form: reinforce`, `L = -sg(w) A log π`, w the ratio of
    the token, or of the whole response (the product over its trained tokens), at most
    `weight_limit`; with `weights: none` it is 1.

    Numbers and gradients are those of verl's `bypass_mode` without rejection, log-ratios cut off at
    ±20. `ppo_kl` is the mean of log μ - log π; with `form: reinforce` `pg_clipfrac` is the share of
    tokens whose weight was cut off.

    Args:
        inputs: of the micro-batch.
        form: clip or reinforce.
        weights: none, token or sequence.
        weight_limit: the largest weight of a ratio.
        bounds: those of `clip`.
    """
    inputs = replace(inputs, old_logprobs=inputs.rollout_logprobs)
    if form == "clip":
        return clip_loss(inputs, **bounds)
    log_ratio = inputs.log_ratio().detach()
    ratio = _ratio(log_ratio, inputs, weights)
    weight = ratio if weights == "none" else ratio.clamp(max=weight_limit)
    gain = inputs.trained(inputs.advantages) * inputs.trained(inputs.logprobs)
    is_cut = inputs.mask & (ratio > weight)
    metrics = {
        "actor/pg_clipfrac": is_cut.float(),
        "actor/pg_clipfrac_lower": torch.zeros_like(weight),
        "actor/ppo_kl": -bounded(log_ratio),
    }
    return LossOutput(-weight * gain, metrics)


def _ratio(log_ratio: Tensor, inputs: LossInputs, weights: str) -> Tensor:
    """(tokens,) how much likelier the policy is than the sampler to write this."""
    if weights == "none":
        return torch.ones_like(log_ratio)
    if weights == "token":
        return bounded(log_ratio).exp()
    of_rows = bounded(row_sum(log_ratio, inputs.mask, inputs.lengths)).exp()
    return torch.repeat_interleave(of_rows, inputs.lengths)
