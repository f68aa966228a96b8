"""KL to the reference policy: estimators, and the penalty on rewards.

All estimators look at the sampled token only, with log-probabilities of the policy (`logprobs`) and
of the reference (`ref_logprobs`); d = log π_ref - log π. John Schulman, "Approximating KL
Divergence", 2020 (http://joschu.net/blog/kl-approx.html), names k1, k2 and k3.
"""

from collections.abc import Callable

from torch import Tensor

from ppojob_trainer.algorithms.masked import zero_outside

Kl = Callable[[Tensor, Tensor], Tensor]
"""From log π and log π_ref to the estimate at each token."""

LOG_RATIO_LIMIT = 20.0
"""|d| beyond which k3 cuts it off before the exponential, as verl does."""

K3_LIMIT = 10.0
"""The largest value of k3, as in verl; beyond it there is no gradient."""


def _k1(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    return logprobs - ref_logprobs


def _k2(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    return 0.5 * (logprobs - ref_logprobs).square()


def _k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    difference = (ref_logprobs - logprobs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return (difference.exp() - difference - 1.0).clamp(-K3_LIMIT, K3_LIMIT)


def _abs(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    return (logprobs - ref_logprobs).abs()


def _with_gradient_of_k2(value: Kl) -> Kl:
    """The value of one estimator with the gradient of another, straight through."""

    def estimate(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
        slope = _k2(logprobs, ref_logprobs)
        return slope - slope.detach() + value(logprobs, ref_logprobs).detach()

    return estimate


KL: dict[str, Kl] = {
    **{"k1": _k1, "k2": _k2, "k3": _k3, "abs": _abs},
    **{
        f"{name}+": _with_gradient_of_k2(of)
        for name, of in (("k1", _k1), ("k3", _k3), ("abs", _abs))
    },
}
"""Every estimator by the name of `spec.algorithm.kl.estimator`."""


def kl_estimate(
    logprobs: Tensor, ref_logprobs: Tensor, estimator: str, *, mask: Tensor | None = None
) -> Tensor:
    """Estimate KL(π || π_ref) at each sampled token.

    | name | value                                      |
    |------|--------------------------------------------|
    | k1   | -d; unbiased, high variance, can be < 0    |
    | k2   | d² / 2; biased, its gradient is unbiased   |
    | k3   | e^d - d - 1 with |d| ≤ 20, at most 10      |
    | abs  | |d|                                        |

    `k1+`, `k3+` and `abs+` have the value of k1, k3 and abs and the gradient of k2, which in
    expectation is that of the KL. k3 as a loss is GRPO's (arXiv:2402.03300), equation 4. Numbers
    and gradients are those of verl's `kl_penalty`, clamps included.

    The gradient flows to log π. Where the mask is False the estimate is 0 and has no gradient,
    whatever the columns hold there; without a mask every token counts.
    """
    return KL[estimator](zero_outside(logprobs, mask), zero_outside(ref_logprobs, mask))


def apply_kl_penalty(token_rewards: Tensor, kl: Tensor, coefficient: float) -> Tensor:
    """Take the penalty off each token's reward, before advantages are estimated.

    InstructGPT (arXiv:2203.02155), equation 2, the KL part, token by token: `r_t - β kl_t`, of the
    policy that sampled; without gradient.
    """
    return (token_rewards - coefficient * kl).detach()
