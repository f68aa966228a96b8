"""Value estimates of prompts, tracked over visits: the baseline of SPO.

Numbers only: the controller's process holds them, and that process loads no torch.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

Belief: TypeAlias = tuple[float, float]
"""Both parameters of a Beta distribution of the probability that a response is right."""

PRIOR: Final[Belief] = (0.5, 0.5)
"""Of a prompt that was never drawn: that of Jeffreys, which verl's recipe has too."""


def value(belief: Belief) -> float:
    """The mean of the distribution, `α / (α + β)`."""
    alpha, beta = belief
    return alpha / (alpha + beta)


def first_belief(scores: Sequence[float], *, decay: float) -> Belief:
    """What is known of a prompt that was never drawn, by scores of responses from beforehand.

    Single-stream Policy Optimization, its offline estimate, as verl's recipe has it: the mean of
    the scores behind that prior, with the weight 1 / (1 - ρ) that visits without an end come to.
    """
    if not scores:
        return PRIOR
    alpha, beta = _counted(PRIOR, scores)
    weight = 1 / (1 - decay) / (len(scores) + 1)
    return weight * alpha, weight * beta


def _counted(belief: Belief, scores: Sequence[float]) -> Belief:
    """A belief that has seen some more scores, each of which counts as one from 0 to 1."""
    right = sum(min(max(score, 0.0), 1.0) for score in scores)
    return belief[0] + right, belief[1] + len(scores) - right


def after_visits(
    beliefs: Mapping[str, Belief],
    visits: Iterable[tuple[str, Sequence[float]]],
    *,
    decay: float,
) -> dict[str, Belief]:
    """The beliefs of the prompts that a step has drawn, by what they ask.

    Single-stream Policy Optimization (arXiv:2509.13232), its value tracker, with ρ the same for
    all: `α ← ρ α + Σ s`, `β ← ρ β + Σ (1 - s)` over the scores s of the visit. A score outside of
    0 to 1 counts as the nearer of both; a prompt of which no response has one stays as it is.
    """
    found: dict[str, Belief] = {}
    for prompt, scores in visits:
        if not scores:
            continue
        alpha, beta = found.get(prompt) or beliefs.get(prompt, PRIOR)
        found[prompt] = _counted((decay * alpha, decay * beta), scores)
    return found
