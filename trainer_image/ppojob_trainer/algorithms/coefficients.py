"""Schedules and controllers of coefficients: KL penalty, entropy bonus, SFT loss.

Imports no torch: the controller uses them.
"""

import math
from dataclasses import dataclass

MAX_PROPORTIONAL_ERROR = 0.2
"""Limit of the relative error of one step."""


def next_kl_coefficient(
    coefficient: float, kl: float, num_responses: int, *, target: float, horizon: int
) -> float:
    """Adapt the coefficient β of the KL penalty to a target KL.

    Fine-Tuning Language Models from Human Preferences (arXiv:1909.08593), section 2.2: `e = clip(kl
    / target - 1, -0.2, 0.2)`, `β ← β (1 + e n / horizon)`, n the responses of the step. KL and
    target are in nats per token; as in verl the KL is the mean over responses of their means.

    Departs from verl: n / horizon is at most 1, since β could become negative, and a KL that is not
    finite changes nothing.
    """
    if not math.isfinite(kl):
        return coefficient
    error = min(max(kl / target - 1.0, -MAX_PROPORTIONAL_ERROR), MAX_PROPORTIONAL_ERROR)
    return coefficient * (1.0 + error * min(1.0, num_responses / horizon))


@dataclass(frozen=True, slots=True)
class SupervisedSchedule:
    """Schedule of the coefficient of the SFT loss over the steps of the policy.

    CHORD (arXiv:2508.11408), μ: `c done / warmup` in the warm-up, from 0. Then c, or a decay from c
    to the minimum m: `m + (c - m) f`. With x the share of the steps from warm-up to end that are
    done, f is `1 - x` if linear, and `(1 + cos(pi x)) / 2` if cosine.
    """

    coefficient: float  # c
    warmup_steps: int = 0
    schedule: str = "constant"
    decay_steps: int | None = None  # the end; None if constant
    min_coefficient: float = 0.0  # m

    @property
    def changes(self) -> bool:
        """Whether the coefficient differs between steps."""
        return self.schedule != "constant" or self.warmup_steps > 0

    def after(self, done: int) -> float:
        """Return the coefficient after `done` steps."""
        if done < self.warmup_steps:
            return self.coefficient * done / self.warmup_steps
        if self.schedule == "constant":
            return self.coefficient
        assert self.decay_steps is not None, "a decaying schedule has an end"
        x = min(1.0, (done - self.warmup_steps) / (self.decay_steps - self.warmup_steps))
        share = 1.0 - x if self.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * x))
        return self.min_coefficient + (self.coefficient - self.min_coefficient) * share


@dataclass(frozen=True, slots=True)
class EntropyController:
    """Adapts the entropy coefficient so that the entropy does not fall below a target.

    Skywork-OR1 (arXiv:2505.22312), adaptive entropy control. e is the entropy of the policy at the
    start of a step: the bonus has the weight `c where e <= target, else 0`, and the next step has
    `c ← c + Δ where e < target, c - Δ where e > target`, within bounds.
    """

    target: float  # nats per token
    step: float  # Δ
    low: float
    high: float

    def bonus(self, coefficient: float, entropy: float) -> float:
        """Return the weight of the bonus in this step; 0 if the entropy is NaN."""
        return coefficient if entropy <= self.target else 0.0

    def after(self, coefficient: float, entropy: float) -> float:
        """Return the coefficient of the next step; unchanged if the entropy is NaN."""
        if entropy < self.target:
            return min(coefficient + self.step, self.high)
        if entropy > self.target:
            return max(coefficient - self.step, self.low)
        return coefficient
