"""On-policy distillation from the teacher's log-probabilities of sampled tokens.

The divergences of GKD over the whole vocabulary (Agarwal et al. 2024, arXiv:2306.13649) are in
`engine.full_kl`. A teacher may read another prompt than the policy, and be the policy itself: with
the solution (OPSD, arXiv:2601.18734), a demonstration (SDFT, arXiv:2601.19897), a response that
succeeded (SDPO, arXiv:2601.20802), or advice (Snell et al. 2022, arXiv:2209.15189).
"""

from typing import Final

import torch
from torch import Tensor

from ppojob_trainer.algorithms.advantages import Advantages
from ppojob_trainer.algorithms.masked import zero_outside

DISTILLATION_LOSS: Final = "distillation/loss"
"""Name of the divergence from the teacher; verl's."""


@torch.no_grad()
def teacher_advantages(
    old_logprobs: Tensor, teacher_logprobs: Tensor, mask: Tensor, limit: float | None = None
) -> Advantages:
    """`A_t = log π_teacher(a_t) - log π_old(a_t)`, each token's own: nothing is discounted to it.

    As policy gradient that is the one of KL(π || π_teacher) of the next token, in expectation over
    the token, which is drawn (Lu and Thinking Machines Lab 2025, On-Policy Distillation; MiniLLM:
    Gu et al. 2024, arXiv:2306.08543, without what later tokens cost). verl: use_policy_gradient
    with loss_mode k1. All are (tokens,); what is beyond `limit` on either side is cut.
    """
    values = zero_outside(teacher_logprobs - old_logprobs, mask)
    if limit is not None:
        values = values.clamp(-limit, limit)
    return Advantages(values, values)
