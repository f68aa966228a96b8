"""Schedules and controllers of coefficients: KL penalty, entropy bonus, demonstrations.

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
class SupervisedSchedule:
    """The weight of given answers, by how many steps of the policy are done.

    CHORD (arXiv:2508.11408), μ: `c done / warmup` in the warm-up, which the first step begins with
    0. Then c, or from c towards the least one m: `m + (c - m) f`. With x the share of the steps
    from the warm-up to the end that are done, f is `1 - x` of a linear schedule, and
    `(1 + cos(pi x)) / 2` of a cosine.
    """

    coefficient: float  # c
    warmup_steps: int = 0
    schedule: str = "constant"
    decay_steps: int | None = None  # the end; None with a constant alone
    min_coefficient: float = 0.0  # m

    @property
    def changes(self) -> bool:
        """Whether the weight is another one in other steps."""
        return self.schedule != "constant" or self.warmup_steps > 0

    def after(self, done: int) -> float:
        """The weight in the next step."""
        if done < self.warmup_steps:
            return self.coefficient * done / self.warmup_steps
        if self.schedule == "constant":
            return self.coefficient
        assert self.decay_steps is not None, "a schedule that falls says until when"
        x = min(1.0, (done - self.warmup_steps) / (self.decay_steps - self.warmup_steps))
        share = 1.0 - x if self.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * x))
        return self.min_coefficient + (self.coefficient - self.min_coefficient) * share


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
