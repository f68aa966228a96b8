"""Statistics of forward and update passes, and the step metrics from them."""

import math
from collections.abc import Sequence

import msgspec


class PassStatistics(msgspec.Struct, frozen=True):
    """Measurements of one pass over rows, on all ranks, by name of the metric.

    Sums and counts, not means: passes of a step compute different numbers of tokens, some none.

    Attributes:
        values: of the whole pass; a step's metric is their mean over its passes.
        state: at the end of the pass; a step's metric is that of its last pass.
        token_sums: sums over the trained tokens that were computed; a step's metric is the mean.
        tokens: how many tokens those are.
        counts: how many values a sum is of, where they are not those tokens, by name.
    """

    values: dict[str, float] = {}
    state: dict[str, float] = {}
    token_sums: dict[str, float] = {}
    tokens: float = 0.0
    counts: dict[str, float] = {}


def step_statistics(passes: Sequence[PassStatistics]) -> dict[str, float]:
    """The metrics of a step's passes of one kind, at least one; a mean of nothing is NaN."""
    values = {
        name: sum(one.values[name] for one in passes) / len(passes) for name in passes[0].values
    }
    means = {}
    for name in passes[0].token_sums:
        count = sum(one.counts.get(name, one.tokens) for one in passes)
        total = sum(one.token_sums[name] for one in passes)
        means[name] = total / count if count else math.nan
    return {**values, **passes[-1].state, **means}
