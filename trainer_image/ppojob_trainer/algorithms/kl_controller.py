"""The coefficient of the KL penalty, from step to step.

Numbers only: the controller's process holds it, and that process loads no torch.
"""

import math

MAX_PROPORTIONAL_ERROR = 0.2
"""How far one step counts as off target at most."""


class KlController:
    """The coefficient β of the penalty, led towards a target.

    Fine-Tuning Language Models from Human Preferences (arXiv:1909.08593), section 2.2:
    `e = clip(kl / target - 1, -0.2, 0.2)`, `β ← β (1 + e n / horizon)`, n the responses seen since
    the last update.

    Departs from verl: n / horizon counts as 1 at most, and a KL that is not finite moves nothing.
    There β turns negative in a step of more than five horizons, and one NaN is the end of it.

    Attributes:
        coefficient: β to use now.
    """

    def __init__(self, coefficient: float, *, target: float, horizon: int) -> None:
        """Start at `coefficient`.

        Args:
            coefficient: the first β.
            target: the KL to be held, in nats a token.
            horizon: how many responses it takes to change β by its own size at an error of 1.
        """
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
        if not math.isfinite(current_kl):
            return
        error = current_kl / self._target - 1.0
        error = min(max(error, -MAX_PROPORTIONAL_ERROR), MAX_PROPORTIONAL_ERROR)
        self.coefficient *= 1.0 + error * min(1.0, num_responses / self._horizon)
