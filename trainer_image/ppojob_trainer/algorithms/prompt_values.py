"""What each prompt is known to score, from visit to visit: the baseline of SPO.

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
        shares = [min(max(score, 0.0), 1.0) for score in scores]
        right = sum(shares)
        found[prompt] = decay * alpha + right, decay * beta + len(shares) - right
    return found
