"""Numbers that a type cannot hold: a job may run so, and its author should know."""

from collections.abc import Iterator
from typing import Final

from ppojob_api.checks.check import conflict
from ppojob_api.problem import Problem
from ppojob_api.v1alpha1.job import PPOJob

_KEPT_BY_BFLOAT16: Final = 2**9
"""An update is lost in a weight that is so many times as large: 8 bits, rounded to the nearest."""


def rounded_updates(job: PPOJob) -> Iterator[Problem]:
    """Weights of few digits, in which an update of AdamW, about a learning rate, gets lost."""
    spec = job.spec
    if spec.model.dtype == "float32" or spec.steps.validate_only:
        return
    optimizers = [spec.optimizer, *([spec.critic.optimizer] if spec.critic else [])]
    rate = min(optimizer.learning_rate for optimizer in optimizers)
    why = (
        f"an update as large as learningRate {rate:g} is rounded away in every weight above "
        f"{_KEPT_BY_BFLOAT16 * rate:.2g}"
    )
    allowed = "float32, with training.autocast: bfloat16 for speed"
    yield conflict("spec.model.dtype", spec.model.dtype, why, allowed)
