"""VESPO: a smooth weight of the response's ratio instead of a clip."""

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
"""Smallest log-ratio of a response, as in TRL."""


def vespo(
    inputs: LossInputs,
    *,
    k_positive: float,
    lambda_positive: float,
    k_negative: float,
    lambda_negative: float,
) -> LossOutput:
    """The policy gradient, weighted by a kernel of the response's ratio.

    VESPO (arXiv:2602.10693): with `w = Π_t ρ_t` over the trained tokens of a row, `L_t = -sg(φ(w))
    A log π_t`, `φ(w) = w^k exp(λ (1 - w))`. k and λ depend on the sign of A, 0 being positive. log
    ρ is clamped to ±20, and log w to log 1e-8 and 20. Numbers and gradients are those of TRL's
    `vespo` without its correction for the sampler, which multiplies w; here a rollout correction
    multiplies the loss.
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
