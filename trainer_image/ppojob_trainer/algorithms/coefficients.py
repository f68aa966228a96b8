"""The coefficients of the KL penalty and of the entropy bonus, from step to step.

Numbers only: the controller's process holds them, and that process loads no torch.
"""

import math
from dataclasses import dataclass

MAX_PROPORTIONAL_ERROR = 0.2
"""How far one step counts as off target at most."""


def next_kl_coefficient(
    coefficient: float, kl: float, num_responses: int, *, target: float, horizon: int
) -> float:
    """Adapt the coefficient β of the KL penalty, so that the KL comes near a target.

    Fine-Tuning Language Models from Human Preferences (arXiv:1909.08593), section 2.2:
    `e = clip(kl / target - 1, -0.2, 0.2)`, `β ← β (1 + e n / horizon)`, n the responses of the
    step. KL and target are in nats a token; as in verl the KL is the mean over the responses of
    each response's mean.

    Departs from verl: n / horizon counts as 1 at most, and a KL that is not finite moves nothing.
    There β turns negative in a step of more than five horizons, and one NaN is the end of it.
    """
    if not math.isfinite(kl):
        return coefficient
    error = min(max(kl / target - 1.0, -MAX_PROPORTIONAL_ERROR), MAX_PROPORTIONAL_ERROR)
    return coefficient * (1.0 + error * min(1.0, num_responses / horizon))


@dataclass(frozen=True, slots=True)
class EntropyController:
    """Moves the coefficient by small steps, so that the entropy does not fall below a target.

    Skywork-OR1 (arXiv:2505.22312), adaptive entropy control, with e the entropy of the policy that
    a step begins with: `α = c where e <= target, else 0` weighs the bonus of the step, and
    `c ← c + Δ where e < target, c - Δ where e > target`, within bounds, is for the next one.

    The target is in nats a token, `step` is Δ.
    """

    target: float
    step: float
    low: float
    high: float

    def bonus(self, coefficient: float, entropy: float) -> float:
        """The weight of the bonus in this step; 0 where the entropy is no number."""
        return coefficient if entropy <= self.target else 0.0

    def after(self, coefficient: float, entropy: float) -> float:
        """The coefficient of the next step; an entropy that is no number moves nothing."""
        if entropy < self.target:
            return min(coefficient + self.step, self.high)
        if entropy > self.target:
            return max(coefficient - self.step, self.low)
        return coefficient
