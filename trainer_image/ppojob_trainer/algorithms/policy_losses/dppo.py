"""DPPO: masks tokens by the divergence of their distribution instead of the ratio."""

import torch
from torch import Tensor

from ppojob_trainer.algorithms.policy_losses.inputs import LossInputs, LossOutput, bounded

EPSILON = 1e-8
"""Added to the probability of all other tokens by `dppo_kl`, as in verl."""


def dppo_tv(
    inputs: LossInputs, *, divergence_low: float, divergence_high: float, ratio_limit: float
) -> LossOutput:
    """The policy gradient of the tokens whose total variation is small.

    DPPO (arXiv:2602.04879), Binary-TV: `L = -A sg(min(ρ, ratio_limit)) M log π`, M = 0 where A > 0
    and π - π_old > divergence_high, and where A ≤ 0 and π_old - π > divergence_low, else 1. The
    limit of the weight is of section 5.4. Numbers and gradients are those of verl's `dppo_tv`, the
    log-ratio clamped to ±20.
    """
    probs, old_probs = _probabilities(inputs)
    moved = probs - old_probs
    return _masked_gradient(inputs, moved > divergence_high, -moved > divergence_low, ratio_limit)


def dppo_kl(
    inputs: LossInputs, *, divergence_low: float, divergence_high: float, ratio_limit: float
) -> LossOutput:
    """The same with the binary KL divergence.

    DPPO (arXiv:2602.04879), Binary-KL: `D = π_old log(π_old / π) + (1 - π_old) log((1 - π_old) / (1
    - π))`, and M = 0 where A > 0, π > π_old and D > divergence_high, and where A ≤ 0, π < π_old and
    D > divergence_low. Numbers and gradients are those of verl's `dppo_kl`, the log-ratio clamped
    to ±20.
    """
    probs, old_probs = _probabilities(inputs)
    others = ((1.0 - old_probs + EPSILON) / (1.0 - probs + EPSILON)).log()
    divergence = -old_probs * inputs.log_ratio().detach() + (1.0 - old_probs) * others
    rose, fell = probs > old_probs, probs < old_probs
    return _masked_gradient(
        inputs,
        rose & (divergence > divergence_high),
        fell & (divergence > divergence_low),
        ratio_limit,
    )


def _probabilities(inputs: LossInputs) -> tuple[Tensor, Tensor]:
    logprobs, old = inputs.trained(inputs.logprobs).detach(), inputs.trained(inputs.old_logprobs)
    return logprobs.exp(), old.exp()


def _masked_gradient(
    inputs: LossInputs, is_high: Tensor, is_low: Tensor, ratio_limit: float
) -> LossOutput:
    """Return the weighted policy gradient without the masked tokens."""
    advantages = inputs.trained(inputs.advantages)
    log_ratio = bounded(inputs.log_ratio()).detach()
    ratio = log_ratio.exp()
    is_kept = ~torch.where(advantages > 0.0, is_high, is_low)
    weight = ratio.clamp(max=ratio_limit) * is_kept
    metrics = {
        "actor/pg_clipfrac": (~is_kept).float(),
        "actor/pg_clipfrac_lower": (is_kept & (ratio > ratio_limit)).float(),
        "actor/ppo_kl": -log_ratio,
    }
    return LossOutput(-advantages * weight * inputs.trained(inputs.logprobs), metrics)
