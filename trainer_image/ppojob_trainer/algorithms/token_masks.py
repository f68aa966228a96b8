"""Token masks of the policy loss: by entropy, and by distance to the sampler."""

import torch
from torch import Tensor

from ppojob_trainer.algorithms.masked import row_mean, zero_outside


def high_entropy(entropies: Tensor, mask: Tensor, share: float) -> tuple[Tensor, float]:
    """Return the trained tokens of the highest entropy of a batch, and the threshold τ.

    Beyond the 80/20 Rule (arXiv:2506.01939), equation 5: `H_t ≥ τ`, τ the entropy above which a
    share of the tokens lies. Other tokens have no policy loss, and count in the denominators.

    `entropies` (tokens,) are those of the policy before the step. The result is (tokens,) bool, at
    least one True; τ is NaN without trained tokens.
    """
    trained = entropies[mask]
    if trained.numel() == 0:
        return mask, float("nan")
    count = max(1, int(share * trained.numel()))
    threshold = trained.kthvalue(trained.numel() - count + 1).values
    return torch.where(mask, entropies, -torch.inf) >= threshold, float(threshold)


def off_policy(
    logprobs: Tensor,
    rollout_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    lengths: Tensor,
    threshold: float,
) -> Tensor:
    """Return (tokens,) bool: tokens of bad responses that the policy has moved away from.

    Off-policy sequence masking of DeepSeek-V3.2 (arXiv:2512.02556): True where A < 0 and the mean
    of `log μ - log π` over the trained tokens of the response is above the threshold, in nats per
    token; μ is the sampler, π the policy in the update. Such tokens have no policy loss, and count
    in the denominators. Numbers are those of TRL's `get_off_policy_mask`.
    """
    fall = zero_outside(rollout_logprobs, mask) - zero_outside(logprobs.detach(), mask)
    is_far = row_mean(fall, mask, lengths) > threshold
    return is_far.repeat_interleave(lengths) & (zero_outside(advantages, mask) < 0.0)
