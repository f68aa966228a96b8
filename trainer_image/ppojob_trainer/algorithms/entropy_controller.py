"""The coefficient of the entropy bonus, from step to step.

Numbers only: the controller's process holds it, and that process loads no torch.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EntropyController:
    """Leads the coefficient by small steps, so that the entropy does not fall below a target.

    Skywork-OR1 (arXiv:2505.22312), adaptive entropy control, with e the entropy of the policy that
    a step begins with: `α = c where e <= target, else 0` weighs the bonus of the step, and
    `c ← c + Δ where e < target, c - Δ where e > target`, within bounds, is for the next one.

    Attributes:
        target: e to be kept, in nats a token.
        step: Δ.
        low: the least c.
        high: the largest c.
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
