"""VESPO: a smooth weight of the whole response, not of its mean, in place of a clip."""

from math import log

import torch

from ppojob_trainer.algorithms.masked import row_sum
from ppojob_trainer.algorithms.policy_losses.inputs import (
    LOG_RATIO_LIMIT,
    LossInputs,
    LossOutput,
    bounded,
)

LEAST_LOG_RATIO = log(1e-8)
"""Log-ratio of a response below which it counts as this, as in TRL."""


def vespo(
    inputs: LossInputs,
    *,
    k_positive: float,
    lambda_positive: float,
    k_negative: float,
    lambda_negative: float,
) -> LossOutput:
    """The policy gradient, weighted by a kernel of the response's ratio.

    VESPO (arXiv:2602.10693): with `w = Π_t ρ_t` over the trained tokens of a row,
    `L_t = -sg(φ(w)) A log π_t`, `φ(w) = w^k exp(λ (1 - w))`, which is 1 at w = 1, greatest at
    w = k / λ, and 0 for ratios of 0 and infinity. k and λ are those of the sign of A, 0 being
    positive. log ρ is cut off at ±20, and log w at log 1e-8 and 20.

    Numbers and gradients are those of TRL's `vespo` without its correction for the sampler, which
    multiplies w there; here that is a rollout correction, whose weights multiply the loss.
    """
    advantages = inputs.trained(inputs.advantages)
    log_ratio = bounded(inputs.log_ratio().detach())
    of_row = row_sum(log_ratio, inputs.mask, inputs.lengths).repeat_interleave(inputs.lengths)
    log_w = of_row.clamp(LEAST_LOG_RATIO, LOG_RATIO_LIMIT)
    is_positive = advantages >= 0.0
    k = torch.where(is_positive, advantages.new_tensor(k_positive), k_negative)
    fall = torch.where(is_positive, advantages.new_tensor(lambda_positive), lambda_negative)
    weight = (k * log_w + fall * (1.0 - log_w.exp())).exp()
    loss = -weight * advantages * inputs.trained(inputs.logprobs)
    return LossOutput(loss, {"actor/ppo_kl": -log_ratio})
