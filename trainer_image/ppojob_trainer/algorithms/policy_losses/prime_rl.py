"""prime-rl's losses: ratios to the sampler, masked far from it, with a quadratic penalty."""

import torch
from torch import Tensor

from ppojob_trainer.algorithms.policy_losses.inputs import LossInputs, LossOutput, bounded


def prime_rl(
    inputs: LossInputs, *, divergence_low: float, divergence_high: float, kl_coefficient: float
) -> LossOutput:
    """DPPO against the sampler μ, with a penalty on the distance to it.

    `L = -A ρ M + kl_coefficient (log ρ)²`, ρ = π / μ. M is that of DPPO's Binary-TV
    (arXiv:2602.04879): 0 where A > 0 and π - μ > divergence_high, and where A ≤ 0 and
    μ - π > divergence_low, else 1. The penalty is that of Kimi K2.5 (arXiv:2602.02276); it is of
    all trained tokens.

    Numbers and gradients are those of prime-rl's `default`, log ρ cut off at ±20 before exp.
    """
    moved = _moved(inputs)
    is_positive = inputs.trained(inputs.advantages) > 0.0
    is_far = torch.where(is_positive, moved > divergence_high, -moved > divergence_low)
    return _held_back(inputs, is_far, kl_coefficient)


def ipo(inputs: LossInputs, *, divergence: float, kl_coefficient: float) -> LossOutput:
    """The same, without those that moved too far whichever way: `M = 0 where |π - μ| > divergence`.

    Numbers and gradients are those of prime-rl's `ipo`, log ρ cut off at ±20 before exp.
    """
    return _held_back(inputs, _moved(inputs).abs() > divergence, kl_coefficient)


def _moved(inputs: LossInputs) -> Tensor:
    """(tokens,) π - μ, without gradient."""
    probs = inputs.trained(inputs.logprobs).detach().exp()
    return probs - inputs.trained(inputs.rollout_logprobs).exp()


def _held_back(inputs: LossInputs, is_far: Tensor, kl_coefficient: float) -> LossOutput:
    """The surrogate of the tokens that are not far, and the penalty of all."""
    log_ratio = inputs.trained(inputs.logprobs) - inputs.trained(inputs.rollout_logprobs)
    gain = inputs.trained(inputs.advantages) * bounded(log_ratio).exp() * ~is_far
    loss = kl_coefficient * log_ratio.square() - gain
    metrics = {
        "actor/pg_clipfrac": is_far.float(),
        "actor/ppo_kl": -bounded(log_ratio).detach(),
    }
    return LossOutput(loss, metrics)
