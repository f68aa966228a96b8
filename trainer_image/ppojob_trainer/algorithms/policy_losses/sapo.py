"""SAPO: a smooth gate on the ratio instead of a clip."""

import torch

from ppojob_trainer.algorithms.policy_losses.inputs import LossInputs, LossOutput, bounded


def sapo(inputs: LossInputs, *, tau_positive: float, tau_negative: float) -> LossOutput:
    """The softly gated surrogate `L = -A 4/τ σ(τ (ρ - 1))`.

    SAPO (arXiv:2511.20347): τ is `tau_positive` where A > 0, else `tau_negative`. Aggregate by
    `sequence_mean_token_mean`. Numbers and gradients are those of verl's `sapo`, the log-ratio
    clamped to ±20.
    """
    log_ratio, advantages = bounded(inputs.log_ratio()), inputs.trained(inputs.advantages)
    tau = torch.where(advantages > 0.0, advantages.new_tensor(tau_positive), tau_negative)
    gate = torch.sigmoid(tau * (log_ratio.exp() - 1.0)) * (4.0 / tau)
    return LossOutput(-advantages * gate, {"actor/ppo_kl": -log_ratio.detach()})
