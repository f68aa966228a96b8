"""How evenly groups are divided over ranks: the dearest rank against the mean, and the time.

    python benchmarks/balance.py [--ranks 8] [--groups 512] [--batches 20]

Lengths are long-tailed, as responses are: lognormal with a standard deviation of 1 in the exponent,
cut at the limit, one response a group (the hardest case: more rows a group even themselves out).
Costs are those of a 7B llama (verl's constant). The last line is a JSON object of figures.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time

from ppojob_trainer.rows.assignment import assign, group_cost

LINEAR_COST = 24576
PROMPT_TOKENS = 256
MEDIAN_TOKENS = 512
MOST_TOKENS = 8192


def costs_of_a_batch(seed: int, groups: int) -> list[int]:
    draw = random.Random(seed)
    lengths = (draw.lognormvariate(math.log(MEDIAN_TOKENS), 1.0) for _ in range(groups))
    return [
        group_cost(PROMPT_TOKENS, [max(1, min(MOST_TOKENS, int(length)))], LINEAR_COST)
        for length in lengths
    ]


def imbalance(costs: list[int], assigned: tuple[int, ...], ranks: int) -> float:
    """The dearest rank's cost over the mean."""
    loads = [0] * ranks
    for cost, rank in zip(costs, assigned, strict=True):
        loads[rank] += cost
    return max(loads) * ranks / sum(costs)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--groups", type=int, default=512)
    parser.add_argument("--batches", type=int, default=20)
    options = parser.parse_args()
    by_cost, in_order, milliseconds = [], [], []
    for seed in range(options.batches):
        costs = costs_of_a_batch(seed, options.groups)
        start = time.perf_counter()
        assigned = assign(costs, options.ranks)
        milliseconds.append((time.perf_counter() - start) * 1e3)
        by_cost.append(imbalance(costs, assigned, options.ranks))
        equal_counts = tuple(g * options.ranks // options.groups for g in range(options.groups))
        in_order.append(imbalance(costs, equal_counts, options.ranks))
    figures = {
        "max_over_mean": max(by_cost),
        "max_over_mean_equal_counts": max(in_order),
        "assign_ms": statistics.median(milliseconds),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
