"""GSPO: one ratio for a response, the geometric mean of its tokens' ratios."""

import torch

from ppojob_trainer.algorithms.policy_losses.inputs import LossInputs, LossOutput

LOG_RATIO_TOP = 10.0
"""Clamp of a response's log-ratio, as in verl."""


def gspo(inputs: LossInputs, *, clip_low: float, clip_high: float) -> LossOutput:
    """The clipped loss, with the ratio of the response.

    GSPO (arXiv:2507.18071), equations 5 to 7, in the token form of equations 13 and 14: with `s =
    exp(1/n Σ_t log ρ_t)` over the n trained tokens of a row, and `s_t = sg(s) π_t / sg(π_t)`, `L_t
    = max(-A s_t, -A clip(s_t, 1 - clip_low, 1 + clip_high))`. Aggregate by
    `sequence_mean_token_mean`; with `sequence_mean_token_sum` it is LUSPO (arXiv:2602.05261).
    Numbers and gradients are those of verl's `gspo`.
    """
    log_ratio, advantages = inputs.log_ratio(), inputs.trained(inputs.advantages)
    of_response = inputs.of_row(log_ratio.detach())
    ratio = (of_response + (log_ratio - log_ratio.detach())).clamp(max=LOG_RATIO_TOP).exp()
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    metrics = {
        "actor/pg_clipfrac": (clipped > plain).float(),
        "actor/ppo_kl": -log_ratio.detach(),
    }
    return LossOutput(torch.maximum(plain, clipped), metrics)
