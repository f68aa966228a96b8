"""GMPO: the geometric mean of a response's ratios, each clipped separately."""

import torch

from ppojob_trainer.algorithms.policy_losses.inputs import LossInputs, LossOutput, bounded


def geo_mean(inputs: LossInputs, *, clip_low: float, clip_high: float) -> LossOutput:
    """Advantage of a response times the geometric mean of its clipped ratios.

    GMPO (arXiv:2507.20673), its objective with token-level clipping: over the n trained tokens,
    `L = -A exp(1/n Σ_t s min(s log ρ_t, s clip(log ρ_t, -clip_low, clip_high)))`, s the sign of A.
    A is the mean of the row's advantages, for estimators that give its tokens different ones; s is
    the token's own. Every token of a row has the row's loss; added up by
    `sequence_mean_token_mean`.

    Departs from verl: verl divides by the rows of the micro-batch, those without trained tokens
    included, and so depends on how the mini-batch is cut; the log-ratio is cut off at ±20, which
    verl does not. verl's `pg_clipfrac` counts every token of a positive advantage outside the
    range, and `pg_clipfrac_lower` of a negative one; here `pg_clipfrac` counts those at which the
    clip decides.
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
