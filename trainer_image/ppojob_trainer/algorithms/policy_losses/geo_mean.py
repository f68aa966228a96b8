"""GMPO: the geometric mean of a response's ratios, each clipped separately."""

import torch

from ppojob_trainer.algorithms.policy_losses.inputs import LossInputs, LossOutput, bounded


def geo_mean(inputs: LossInputs, *, clip_low: float, clip_high: float) -> LossOutput:
    """Advantage times the geometric mean of a response's clipped ratios.

    GMPO (arXiv:2507.20673), token-level clipping: over the n trained tokens `L = -A exp(1/n Σ_t s
    min(s log ρ_t, s clip(log ρ_t, -clip_low, clip_high)))`, s the sign of the token's advantage, A
    the row's mean advantage. Every token of a row has the row's loss; aggregate by
    `sequence_mean_token_mean`.

    Departs from verl, which divides by all rows of the micro-batch, also those without trained
    tokens; the log-ratio is clamped to ±20; `pg_clipfrac` counts tokens that the clip decides,
    where verl's counts those of a positive advantage outside the range, `pg_clipfrac_lower` of a
    negative one.
    """
    log_ratio, advantages = inputs.log_ratio(), inputs.trained(inputs.advantages)
    cut, sign = bounded(log_ratio), advantages.sign()
    worse = sign * torch.minimum(sign * cut, sign * cut.clamp(-clip_low, clip_high))
    loss = inputs.trained(-inputs.of_row(advantages) * inputs.of_row(worse).exp())
    metrics = {
        "actor/pg_clipfrac": ((sign != 0.0) & (worse != cut)).float(),
        "actor/ppo_kl": -log_ratio.detach(),
    }
    return LossOutput(loss, metrics)
