"""On-policy distillation from the teacher's log-probabilities of sampled tokens.

Divergences over the whole vocabulary (GKD, arXiv:2306.13649) are in `engine.full_kl`. A teacher may
read another prompt than the policy, and be the policy itself: with the solution (OPSD,
arXiv:2601.18734), a demonstration (SDFT, arXiv:2601.19897), a successful response (SDPO,
arXiv:2601.20802), or advice (Snell et al. 2022, arXiv:2209.15189).
"""

from typing import Final

import torch
from torch import Tensor

from ppojob_trainer.algorithms.advantages import Advantages
from ppojob_trainer.algorithms.masked import zero_outside

DISTILLATION_LOSS: Final = "distillation/loss"
"""Metric of the divergence from the teacher."""


@torch.no_grad()
def teacher_advantages(
    old_logprobs: Tensor, teacher_logprobs: Tensor, mask: Tensor, limit: float | None = None
) -> Advantages:
    """Return `A_t = log π_teacher(a_t) - log π_old(a_t)`, clipped to ±limit; all are (tokens,).

    As a policy gradient it is in expectation the gradient of KL(π || π_teacher) of the next token
    (Lu and Thinking Machines Lab 2025, On-Policy Distillation; MiniLLM, arXiv:2306.08543, without
    the return to go). verl: use_policy_gradient with loss_mode k1.
    """
    values = zero_outside(teacher_logprobs - old_logprobs, mask)
    if limit is not None:
        values = values.clamp(-limit, limit)
    return Advantages(values, values)
