"""Log-probabilities and entropy from logits, by their definition.

This materializes the whole (tokens, vocab) matrix. The trainer uses a chunked form that does not,
and is tested against this one.
"""

import torch
from torch import Tensor


def token_logprobs(
    logits: Tensor, targets: Tensor, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Log-probability of each target and entropy of its distribution, at a temperature.

    With z = logits / temperature: `log p_a = z_a - logsumexp(z)` and `H = -Σ_v p_v log p_v`. A
    token whose logit is -inf has probability 0 and adds nothing to the entropy.

    Args:
        logits: (tokens, vocab), any float dtype; computed in float32, float64 stays float64.
        targets: (tokens,) int64.
        temperature: above 0; that of the sampling.

    Returns:
        logprobs (tokens,) and entropy (tokens,), both in nats.

    Raises:
        ValueError: if the temperature is not positive.
    """
    if not temperature > 0.0:
        raise ValueError(
            f"temperature: got {temperature}: logits are divided by it; must be above 0"
        )
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    log_p = torch.log_softmax(logits.to(dtype) / temperature, dim=-1)
    logprobs = log_p.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    finite = log_p.masked_fill(log_p == -torch.inf, 0.0)
    entropy = -(log_p.exp() * finite).sum(dim=-1)
    return logprobs, entropy
