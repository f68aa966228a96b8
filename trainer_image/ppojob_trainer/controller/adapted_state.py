"""Adapted state: what a step changes for the next one by what it measured, and its metrics."""

from ppojob_api.v1alpha1.algorithm import KlSpec
from ppojob_api.v1alpha1.estimators import SpoSpec
from ppojob_trainer.algorithms.coefficients import next_kl_coefficient
from ppojob_trainer.algorithms.prompt_values import Belief, after_visits
from ppojob_trainer.checkpoint.manifest import Progress
from ppojob_trainer.controller.training_step import StepResult, tracked_values


def kl_metrics(kl: KlSpec, coefficient: float, result: StepResult) -> dict[str, float]:
    """Return the KL penalty of a step, and the coefficient that it had."""
    found = dict[str, float]()
    if kl.in_ == "loss":
        found["actor/kl_coef"] = coefficient
    if kl.loss_term is not None:
        found["actor/kl_coef"] = kl.loss_term.coefficient
    if result.kl is not None:
        found["actor/reward_kl_penalty"] = result.kl
        found["actor/reward_kl_penalty_coeff"] = coefficient
    return found


def next_kl(kl: KlSpec, before: Progress, result: StepResult) -> float | None:
    """Return the KL coefficient of the next step; None without one."""
    current, measured = before.kl_coefficient, result.kl
    if current is None or measured is None or kl.controller == "fixed":
        return current
    num_rows = result.batch.num_rows
    return next_kl_coefficient(current, measured, num_rows, target=kl.target, horizon=kl.horizon)


def next_values(spo: SpoSpec | None, before: Progress, result: StepResult) -> dict[str, Belief]:
    """Return the tracked values of prompts after a step, by digest."""
    values = before.prompt_values
    if spo is None:
        return values
    prompts = result.batch.prompts
    tracked = zip(prompts, tracked_values(prompts, values, spo.decay), strict=True)
    drawn = {prompt.prompt_digest: own for prompt, own in tracked}
    return {**values, **after_visits(drawn, result.visits, decay=spo.decay)}
