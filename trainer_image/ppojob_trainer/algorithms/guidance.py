"""Policy shaping of off-policy demonstrations in groups.

LUFFY (Yan et al. 2025, arXiv:2504.14945): the behaviour probability of demonstrations is taken as
1, so their importance ratio is π, and f(π) = π / (π + γ) replaces it. The gradient of f with
respect to log π, π γ / (π + γ)^2, is largest at π = γ, so unlikely tokens are learnt. There is no
clip.
"""

from math import log

from torch import Tensor


def shaped_ratio(logprobs: Tensor, gamma: float) -> Tensor:
    """Return f(π) of log π, (tokens,), with its gradient."""
    return (logprobs - log(gamma)).sigmoid()
