"""The coefficient of the KL penalty, fixed or led towards a target."""

MAX_PROPORTIONAL_ERROR = 0.2
"""How far one step counts as off target at most."""


def next_coefficient(
    coefficient: float, kl: float, num_responses: int, *, target: float, horizon: int
) -> float:
    """The coefficient after a step that measured `kl`.

    Fine-Tuning Language Models from Human Preferences (arXiv:1909.08593), section 2.2:
    `e = clip(kl / target - 1, -0.2, 0.2)`, `b <- b (1 + e n / horizon)`.

    Args:
        coefficient: b of this step.
        kl: mean KL of the step, in nats a token.
        num_responses: n, responses of the step.
        target: the KL to be held, in nats a token.
        horizon: how many responses it takes to change b by its own size at an error of 1.
    """
    error = kl / target - 1.0
    error = min(max(error, -MAX_PROPORTIONAL_ERROR), MAX_PROPORTIONAL_ERROR)
    return coefficient * (1.0 + error * num_responses / horizon)
