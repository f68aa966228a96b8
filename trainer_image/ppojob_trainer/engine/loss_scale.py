"""Scales losses of passes in float16, whose gradients would else be too small for a number.

Micikevicius et al. 2018 (arXiv:1710.03740), section 3.2: the backward pass begins with a multiple
of the loss, and gradients are divided by it in front of the step. Where a gradient has become too
large for a number the step is left out and the next one takes half of it; after so many steps it is
doubled. All are powers of two, so they round nothing.
"""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

LOSS_SCALE: Final = "loss_scale"
"""Its name among the tensors of an engine's state."""

_LEAST: Final = 2.0**-24
"""The smallest number of float16."""

_GROWS_AFTER: Final = 400
"""Steps, as in verl; torch's own default is 2000."""


@dataclass(slots=True)
class LossScale:
    """The scale of the next update, and how many updates it has served."""

    value: float = 65_536.0
    steps: int = 0

    def after(self, *, is_finite: bool) -> None:
        """Go on behind an update, whose gradient was finite or not."""
        self.steps = self.steps + 1 if is_finite else 0
        if not is_finite:
            self.value = max(self.value / 2.0, _LEAST)
        elif self.steps == _GROWS_AFTER:
            self.value, self.steps = self.value * 2.0, 0

    def state(self) -> Tensor:
        """(2,) float64."""
        return torch.tensor([self.value, self.steps], dtype=torch.float64)

    def load(self, state: Tensor) -> None:
        """Go on from a state."""
        value, steps = state.tolist()
        self.value, self.steps = value, int(steps)
