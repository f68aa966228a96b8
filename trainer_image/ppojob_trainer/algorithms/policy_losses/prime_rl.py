"""prime-rl's losses: ratios to the sampler, masked by divergence, with a quadratic penalty."""

import torch
from torch import Tensor

from ppojob_trainer.algorithms.policy_losses.inputs import LossInputs, LossOutput, bounded


def prime_rl(
    inputs: LossInputs, *, divergence_low: float, divergence_high: float, kl_coefficient: float
) -> LossOutput:
    """DPPO with ratios to the sampler μ, and a penalty on the distance to it.

    `L = -A ρ M + kl_coefficient (log ρ)²`, ρ = π / μ, M as in DPPO's Binary-TV (arXiv:2602.04879):
    0 where A > 0 and π - μ > divergence_high, and where A ≤ 0 and μ - π > divergence_low, else 1.
    The penalty, on all trained tokens, is that of Kimi K2.5 (arXiv:2602.02276). Numbers and
    gradients are those of prime-rl's `default`, log ρ clamped to ±20 before exp.
    """
    moved = _moved(inputs)
    is_positive = inputs.trained(inputs.advantages) > 0.0
    is_far = torch.where(is_positive, moved > divergence_high, -moved > divergence_low)
    return _masked_surrogate(inputs, is_far, kl_coefficient)


def ipo(inputs: LossInputs, *, divergence: float, kl_coefficient: float) -> LossOutput:
    """The same with a symmetric mask: `M = 0 where |π - μ| > divergence`.

    Numbers and gradients are those of prime-rl's `ipo`, log ρ clamped to ±20 before exp.
    """
    return _masked_surrogate(inputs, _moved(inputs).abs() > divergence, kl_coefficient)


def _moved(inputs: LossInputs) -> Tensor:
    """Return (tokens,) π - μ, without gradient."""
    probs = inputs.trained(inputs.logprobs).detach().exp()
    return probs - inputs.trained(inputs.rollout_logprobs).exp()


def _masked_surrogate(inputs: LossInputs, is_far: Tensor, kl_coefficient: float) -> LossOutput:
    """Return the surrogate of the tokens that are not masked, plus the penalty."""
    log_ratio = inputs.trained(inputs.logprobs) - inputs.trained(inputs.rollout_logprobs)
    gain = inputs.trained(inputs.advantages) * bounded(log_ratio).exp() * ~is_far
    loss = kl_coefficient * log_ratio.square() - gain
    metrics = {
        "actor/pg_clipfrac": is_far.float(),
        "actor/ppo_kl": -bounded(log_ratio).detach(),
    }
    return LossOutput(loss, metrics)
