"""Distance to the reference policy: estimators, the penalty on rewards, and its coefficient.

All estimators look at the sampled token only, with log-probabilities of the policy (`logprobs`) and
of the reference (`ref_logprobs`); d = log π_ref - log π. John Schulman, "Approximating KL
Divergence", 2020 (http://joschu.net/blog/kl-approx.html), names k1, k2 and k3.
"""

from collections.abc import Callable, Mapping

from torch import Tensor

from ppojob_trainer.algorithms.masked import zero_outside

LOG_RATIO_LIMIT = 20.0
"""|d| beyond which k3 cuts it off before the exponential, as verl does."""

K3_LIMIT = 10.0
"""The largest value of k3, as in verl; beyond it there is no gradient."""

MAX_PROPORTIONAL_ERROR = 0.2
"""How far one step counts as off target at most, in `KlController`."""


def _k1(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    return logprobs - ref_logprobs


def _k2(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    return 0.5 * (logprobs - ref_logprobs).square()


def _k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    difference = (ref_logprobs - logprobs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return (difference.exp() - difference - 1.0).clamp(-K3_LIMIT, K3_LIMIT)


def _abs(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    return (logprobs - ref_logprobs).abs()


KL: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"k1": _k1, "k2": _k2, "k3": _k3, "abs": _abs}
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

    k3 as a loss is GRPO's (arXiv:2402.03300), equation 4. A trailing `+` ("k1+", "k3+") keeps the
    value and takes k2's gradient, the unbiased one (straight-through, as in verl).

    Numbers and gradients are those of verl's `kl_penalty`, clamps included.

    Args:
        logprobs: (tokens,) log π; the gradient flows here.
        ref_logprobs: (tokens,) log π_ref.
        estimator: a name in `KL`, with or without a trailing `+`.
        mask: (tokens,) bool; where False the estimate is 0 and has no gradient, whatever the
            columns hold there. None: every token counts.

    Returns:
        (tokens,).

    Raises:
        ValueError: if the estimator is unknown.
    """
    name = estimator.removesuffix("+")
    if name not in KL:
        allowed = ", ".join(KL)
        raise ValueError(
            f"estimator: got {estimator!r}: unknown; must be one of {allowed}, or one with a '+'"
        )
    logprobs = zero_outside(logprobs, mask)
    ref_logprobs = zero_outside(ref_logprobs, mask)
    value = KL[name](logprobs, ref_logprobs)
    if name == estimator:
        return value
    surrogate = _k2(logprobs, ref_logprobs)
    return value.detach() + (surrogate - surrogate.detach())


def apply_kl_penalty(token_rewards: Tensor, kl: Tensor, coefficient: float) -> Tensor:
    """Take the penalty off each token's reward, before advantages are estimated.

    InstructGPT (arXiv:2203.02155), equation 2, the KL part, token by token: `r_t - β kl_t`.

    Args:
        token_rewards: (tokens,) r_t.
        kl: (tokens,) from `kl_estimate` on the policy that sampled; masked tokens give 0 when it
            was given the mask.
        coefficient: β.

    Returns:
        (tokens,), without gradient.
    """
    return (token_rewards - coefficient * kl).detach()


class KlController:
    """The coefficient β of the penalty, fixed or led towards a target.

    Fine-Tuning Language Models from Human Preferences (arXiv:1909.08593), section 2.2:
    `e = clip(kl / target - 1, -0.2, 0.2)`, `β ← β (1 + e n / horizon)`, n the responses seen since
    the last update. Without a target β stays as it is.

    Attributes:
        coefficient: β to use now.
    """

    def __init__(
        self, coefficient: float, *, target: float | None = None, horizon: int = 10000
    ) -> None:
        """Start at `coefficient`.

        Args:
            coefficient: the first β.
            target: the KL to be held, in nats a token; None keeps β fixed.
            horizon: how many responses it takes to change β by its own size at an error of 1.

        Raises:
            ValueError: if `target` or `horizon` is not positive.
        """
        if target is not None and target <= 0.0:
            raise ValueError(f"target: got {target}: KL is positive; must be above 0")
        if horizon <= 0:
            raise ValueError(f"horizon: got {horizon}: a number of responses; must be above 0")
        self.coefficient = coefficient
        self._target = target
        self._horizon = horizon

    def update(self, current_kl: float, num_responses: int) -> None:
        """Adapt β to what was measured.

        Args:
            current_kl: KL of the step in nats a token, as in verl the mean over the responses of
                each response's mean.
            num_responses: responses of the step.
        """
        if self._target is None:
            return
        error = current_kl / self._target - 1.0
        error = min(max(error, -MAX_PROPORTIONAL_ERROR), MAX_PROPORTIONAL_ERROR)
        self.coefficient *= 1.0 + error * num_responses / self._horizon

    def state_dict(self) -> dict[str, float]:
        """What a commit must hold for a resumed run to go on with the same β."""
        return {"coefficient": self.coefficient}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Take up a state that `state_dict` gave."""
        self.coefficient = state["coefficient"]
