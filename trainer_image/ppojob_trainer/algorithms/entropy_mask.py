"""Which tokens decide: those at which the policy is least sure."""

import torch
from torch import Tensor


def high_entropy(entropies: Tensor, mask: Tensor, share: float) -> tuple[Tensor, float]:
    """Find the trained tokens of the highest entropy of a batch.

    Beyond the 80/20 Rule (arXiv:2506.01939), equation 5: `H_t ≥ τ`, τ the entropy above which a
    share of the batch's tokens lies. Policy losses of the others are 0, and they still count in the
    denominators. Tokens of the entropy τ itself all stay, so there may be more than the share.

    Args:
        entropies: (tokens,) of the policy before the step.
        mask: (tokens,) bool.
        share: above 0, at most 1; at least one token stays.

    Returns:
        (tokens,) bool, False where a token is not trained, and τ; NaN where none is.
    """
    trained = entropies[mask]
    if trained.numel() == 0:
        return mask, float("nan")
    count = max(1, int(share * trained.numel()))
    threshold = trained.kthvalue(trained.numel() - count + 1).values
    return torch.where(mask, entropies, -torch.inf) >= threshold, float(threshold)
