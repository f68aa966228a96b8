"""Value estimates of prompts, tracked over visits: the baseline of SPO.

Imports no torch: the controller uses it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

Belief: TypeAlias = tuple[float, float]
"""Parameters of a Beta distribution over the probability of a right response."""

PRIOR: Final[Belief] = (0.5, 0.5)
"""Jeffreys prior, for a prompt without scores, as in verl's recipe."""


def value(belief: Belief) -> float:
    """Return the mean of the distribution, `α / (α + β)`."""
    alpha, beta = belief
    return alpha / (alpha + beta)


def first_belief(scores: Sequence[float], *, decay: float) -> Belief:
    """Return the belief of a prompt from scores of responses before the run.

    Single-stream Policy Optimization, its offline estimate, as in verl's recipe: the mean of the
    prior and the scores, with the weight 1 / (1 - ρ), the limit of infinitely many visits.
    """
    if not scores:
        return PRIOR
    alpha, beta = _counted(PRIOR, scores)
    weight = 1 / (1 - decay) / (len(scores) + 1)
    return weight * alpha, weight * beta


def _counted(belief: Belief, scores: Sequence[float]) -> Belief:
    """Add scores to a belief, each clamped to [0, 1]."""
    right = sum(min(max(score, 0.0), 1.0) for score in scores)
    return belief[0] + right, belief[1] + len(scores) - right


def after_visits(
    beliefs: Mapping[str, Belief],
    visits: Iterable[tuple[str, Sequence[float]]],
    *,
    decay: float,
) -> dict[str, Belief]:
    """Return the beliefs of the prompts of a step, by prompt, after its scores.

    Single-stream Policy Optimization (arXiv:2509.13232), its value tracker, with a constant ρ: `α ←
    ρ α + Σ s`, `β ← ρ β + Σ (1 - s)` over the scores s of the visit. Prompts without a score are
    left out.
    """
    found: dict[str, Belief] = {}
    for prompt, scores in visits:
        if not scores:
            continue
        alpha, beta = found.get(prompt) or beliefs.get(prompt, PRIOR)
        found[prompt] = _counted((decay * alpha, decay * beta), scores)
    return found
