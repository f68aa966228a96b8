"""Policy shaping of off-policy demonstrations in groups (LUFFY).

LUFFY (Yan et al. 2025, arXiv:2504.14945), policy shaping: their importance ratio takes what
wrote them to be sure of each token, so that it is π itself, and f(π) = π / (π + γ) takes its place.
The gradient of f to log π, π γ / (π + γ)^2, is largest at π = γ, where that of π itself is small:
so unlikely tokens are learnt from. Nothing is clipped.

Shapes: (tokens,), flat.
"""

from math import log

from torch import Tensor


def shaped_ratio(logprobs: Tensor, gamma: float) -> Tensor:
    """f(π) of log π, with its gradient."""
    return (logprobs - log(gamma)).sigmoid()
