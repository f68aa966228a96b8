"""What passes of a model over rows measure, and the metrics that a step makes of it."""

import math
from collections.abc import Sequence

import msgspec


class PassStatistics(msgspec.Struct, frozen=True):
    """What one pass over rows has measured, on all ranks, by name of the metric.

    Sums and counts, not means: passes of a step compute different numbers of tokens, some none.

    Attributes:
        values: of the whole pass; a step's metric is their mean over its passes that have it.
        state: at the end of the pass; a step's metric is that of its last pass.
        token_sums: sums over the trained tokens that were computed; a step's metric is the mean.
        tokens: how many tokens those are.
    """

    values: dict[str, float] = {}
    state: dict[str, float] = {}
    token_sums: dict[str, float] = {}
    tokens: float = 0.0


def step_statistics(passes: Sequence[PassStatistics]) -> dict[str, float]:
    """The metrics of a step's passes of one kind, at least one; a mean of no token is NaN."""
    tokens = sum(one.tokens for one in passes)
    told = {
        name: [one.values[name] for one in passes if name in one.values]
        for name in dict.fromkeys(name for one in passes for name in one.values)
    }
    values = {name: sum(found) / len(found) for name, found in told.items()}
    means = {
        name: sum(one.token_sums[name] for one in passes) / tokens if tokens else math.nan
        for name in passes[0].token_sums
    }
    return {**values, **passes[-1].state, **means}
