"""Statistics of forward and update passes, and the step metrics from them."""

import math
from collections.abc import Sequence

import msgspec


class PassStatistics(msgspec.Struct, frozen=True):
    """Measurements of one pass over rows, on all ranks, by metric name."""

    values: dict[str, float] = {}  # averaged over the passes of a step
    state: dict[str, float] = {}  # at the end of the pass; the last pass of a step counts
    token_sums: dict[str, float] = {}  # over trained tokens; a metric is the mean over its tokens
    tokens: float = 0.0  # trained ones
    counts: dict[str, float] = {}  # number of summands of a sum, if it is not `tokens`


def step_statistics(passes: Sequence[PassStatistics]) -> dict[str, float]:
    """Return the metrics of a step from its passes of one model; a mean over nothing is NaN."""
    values = {
        name: sum(one.values[name] for one in passes) / len(passes) for name in passes[0].values
    }
    means = {}
    for name in passes[0].token_sums:
        count = sum(one.counts.get(name, one.tokens) for one in passes)
        total = sum(one.token_sums[name] for one in passes)
        means[name] = total / count if count else math.nan
    return {**values, **passes[-1].state, **means}
