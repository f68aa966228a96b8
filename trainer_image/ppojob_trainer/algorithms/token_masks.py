"""Token masks of the policy loss: by entropy, and by distance to the sampler."""

import torch
from torch import Tensor

from ppojob_trainer.algorithms.masked import row_mean, zero_outside


def high_entropy(entropies: Tensor, mask: Tensor, share: float) -> tuple[Tensor, float]:
    """Find the trained tokens of the highest entropy of a batch.

    Beyond the 80/20 Rule (arXiv:2506.01939), equation 5: `H_t ≥ τ`, τ the entropy above which a
    share of the batch's tokens lies. Policy losses of the others are 0, and they still count in the
    denominators. Tokens of the entropy τ itself all stay, so there may be more than the share.

    The entropies are (tokens,), of the policy before the step. At least one token stays.

    Returns:
        (tokens,) bool, False where a token is not trained, and τ; NaN where none is.
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
    """Find tokens of bad responses that the policy has moved away from: they have no policy loss.

    Off-policy sequence masking of DeepSeek-V3.2 (arXiv:2512.02556): a token has none where A < 0
    and the mean of `log μ - log π` over the trained tokens of its response is above the threshold,
    μ being the sampler. It still counts in the denominators. Numbers are those of TRL's
    `get_off_policy_mask`.

    π is the policy in the update, the threshold is in nats a token. The result is (tokens,), False
    where a token is not trained.
    """
    fall = zero_outside(rollout_logprobs, mask) - zero_outside(logprobs.detach(), mask)
    is_far = row_mean(fall, mask, lengths) > threshold
    return is_far.repeat_interleave(lengths) & (zero_outside(advantages, mask) < 0.0)
