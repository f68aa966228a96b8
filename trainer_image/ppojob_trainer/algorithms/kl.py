"""KL to the reference policy: estimators, and the penalty on rewards.

Estimators use the sampled token only, with d = log π_ref - log π. Names are from John Schulman,
"Approximating KL Divergence", 2020 (http://joschu.net/blog/kl-approx.html).
"""

from collections.abc import Callable

from torch import Tensor

from ppojob_trainer.algorithms.masked import zero_outside

Kl = Callable[[Tensor, Tensor], Tensor]
"""From log π and log π_ref to the estimate, (tokens,) each."""

LOG_RATIO_LIMIT = 20.0
"""Clamp of |d| in k3, as in verl."""

K3_LIMIT = 10.0
"""Clamp of k3, as in verl."""


def _k2(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    return 0.5 * (logprobs - ref_logprobs).square()


def _k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    difference = (ref_logprobs - logprobs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return (difference.exp() - difference - 1.0).clamp(-K3_LIMIT, K3_LIMIT)


def _with_gradient_of_k2(value: Kl) -> Kl:
    """Return an estimator with the value of another and the gradient of k2 (straight through)."""

    def estimate(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
        slope = _k2(logprobs, ref_logprobs)
        return slope - slope.detach() + value(logprobs, ref_logprobs).detach()

    return estimate


KL: dict[str, Kl] = {
    "k1": lambda logprobs, ref_logprobs: logprobs - ref_logprobs,
    "k2": _k2,
    "k3": _k3,
    "abs": lambda logprobs, ref_logprobs: (logprobs - ref_logprobs).abs(),
}
KL |= {f"{name}+": _with_gradient_of_k2(KL[name]) for name in ("k1", "k3", "abs")}
"""Estimators by `spec.algorithm.kl.estimator`."""


def kl_estimate(logprobs: Tensor, ref_logprobs: Tensor, estimator: str, *, mask: Tensor) -> Tensor:
    """Estimate KL(π || π_ref) at each sampled token, with gradient to log π.

    | name | value                                      |
    |------|--------------------------------------------|
    | k1   | -d; unbiased, high variance, can be < 0    |
    | k2   | d² / 2; biased, its gradient is unbiased   |
    | k3   | e^d - d - 1 with |d| ≤ 20, at most 10      |
    | abs  | |d|                                        |

    `k1+`, `k3+` and `abs+` have the value of k1, k3 and abs and the gradient of k2, in expectation
    that of the KL. k3 as a loss is GRPO's (arXiv:2402.03300), equation 4. Numbers and gradients are
    those of verl's `kl_penalty`, clamps included. Masked tokens give 0 without gradient.
    """
    return KL[estimator](zero_outside(logprobs, mask), zero_outside(ref_logprobs, mask))


def apply_kl_penalty(token_rewards: Tensor, kl: Tensor, coefficient: float) -> Tensor:
    """Subtract the KL penalty from token rewards: `r_t - β kl_t`, without gradient.

    InstructGPT (arXiv:2203.02155), equation 2, the KL part, per token.
    """
    return (token_rewards - coefficient * kl).detach()
