"""FlowRL: length-normalized trajectory balance with a learned log Z."""

import math

import torch

from ppojob_trainer.algorithms.masked import row_mean, row_sum
from ppojob_trainer.algorithms.policy_losses.inputs import LossInputs, LossOutput, bounded


def flowrl(inputs: LossInputs, *, beta: float, ratio_limit: float) -> LossOutput:
    """The squared error of the mean balance of a row, weighted for old responses.

    FlowRL (arXiv:2509.15207), its objective: with |y| the trained tokens of a row, `L = w (log Z +
    1/|y| Σ_t (log π_t - log π_ref,t) - β A)²`, A the row's mean advantage, and `w = sg(min(Π_t ρ_t,
    ratioLimit))`. log Z is the output of a network for the prompt; network and policy are trained
    by the loss. Numbers and gradients are those of verl's recipe. Departs from the paper, which
    clips w on both sides, near 1.
    """
    assert inputs.ref_logprobs is not None, "the reference comes before the update"
    assert inputs.log_z is not None, "the network of log Z is part of the update"
    log_z, log_ratio = inputs.trained(inputs.log_z), inputs.log_ratio()
    per_token = log_z + inputs.trained(inputs.logprobs) - inputs.trained(inputs.ref_logprobs)
    balance = per_token.double() - beta * inputs.trained(inputs.advantages).double()
    error = row_mean(balance, inputs.mask, inputs.lengths)
    moved = row_sum(log_ratio.detach().double(), inputs.mask, inputs.lengths)
    weight = moved.clamp(max=math.log(ratio_limit)).exp()
    loss = (weight * error.square()).to(log_ratio.dtype)
    tokens = torch.repeat_interleave(loss, inputs.lengths)
    metrics = {"actor/ppo_kl": -bounded(log_ratio).detach(), "actor/log_z": log_z.detach()}
    return LossOutput(inputs.trained(tokens), metrics)
