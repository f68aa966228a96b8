"""Which bad responses the policy has left behind: there is nothing to learn from them any more."""

from torch import Tensor

from ppojob_trainer.algorithms.masked import row_mean, zero_outside


def off_policy(
    logprobs: Tensor,
    rollout_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    lengths: Tensor,
    threshold: float,
) -> Tensor:
    """Find the tokens that have no policy loss.

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
