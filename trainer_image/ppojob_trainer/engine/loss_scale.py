"""Dynamic loss scaling for float16, whose gradients would otherwise underflow.

Micikevicius et al. 2018 (arXiv:1710.03740), section 3.2: the loss is multiplied by the scale, and
gradients are divided by it before the step. If a gradient overflows, the step is skipped and the
scale halved; after a number of good steps it is doubled. Powers of two add no rounding.
"""

from dataclasses import dataclass
from typing import Final

LOSS_SCALE: Final = "loss_scale"
"""Name among the tensors of an engine's state."""

_LEAST: Final = 2.0**-24
"""The smallest positive float16."""

_GROWS_AFTER: Final = 400
"""Good steps before doubling, as in verl; torch's own default is 2000."""


@dataclass(slots=True)
class LossScale:
    """The scale of the next update, and for how many updates it has been used."""

    value: float = 65_536.0
    steps: float = 0.0

    def update(self, *, is_finite: bool) -> None:
        self.steps = self.steps + 1.0 if is_finite else 0.0
        if not is_finite:
            self.value = max(self.value / 2.0, _LEAST)
        elif self.steps == _GROWS_AFTER:
            self.value, self.steps = self.value * 2.0, 0.0
