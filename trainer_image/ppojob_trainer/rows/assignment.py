"""Load balancing: assigns groups to ranks so that all finish at about the same time. Pure.

A cost is work in units in which one token of attention context counts 1.

A transformer does `2 W` operations a token in its weight matrices (`W` weights in all) and, in each
of its `n` layers, `4 w` operations for every pair of a token and a token of its context (`w` =
heads times head size; two matrix products). So a row of `L` tokens costs

    2 W L + 4 n w L^2  =  4 n w (a L + L^2),    a = W / (2 n w).

verl's constant 24576 is `a` of a model of 7 billion weights: hidden size `h` = 4096, `w = h`, `W =
12 n h^2`, no output layer counted: `a = 6 h`. The square is computed whole, as our attention does;
a causal kernel would double `a`.
"""

import heapq
from collections.abc import Sequence
from math import prod

from ppojob_trainer.models.architectures import Sizes, backbone_tensors
from ppojob_trainer.rows.batch_index import BatchIndex

_Share = tuple[int, tuple[int, ...]]  # cost and items of a part


def assign(costs: Sequence[int], parts: int) -> tuple[int, ...]:
    """Partition items so that the most expensive part is cheap.

    The largest differencing method (Karmarkar and Karp, The differencing method of set
    partitioning, UC Berkeley report UCB/CSD 82/113, 1982), in its form for many parts: the two
    partitions of the greatest spread are merged, the most expensive part of one with the cheapest
    of the other, until one partition is left. With few items the greedy rule is sometimes better;
    it is tried too, so its bound (Graham, SIAM J. Appl. Math. 17, 1969: at most 4/3 of the optimum)
    holds. Ties are broken by the order of the items.

    Costs are integers, so that sums are exact in any order. Returns the part of each item; parts
    are numbered by their first item, and none is empty if there are as many items.
    """
    if not costs:
        return ()
    candidates = _largest_differencing(costs, parts), _greedy(costs, parts)
    shares = min(candidates, key=lambda shares: max(cost for cost, _ in shares))
    assigned = [0] * len(costs)
    for part, items in enumerate(sorted(tuple(sorted(items)) for _, items in shares if items)):
        for item in items:
            assigned[item] = part
    return tuple(assigned)


def assign_kinds(costs: Sequence[int], kinds: Sequence[int], parts: int) -> tuple[int, ...]:
    """Partition items so that the most expensive part of each kind is cheap, as `assign` does.

    The most expensive share of a kind goes to the part that has least of the kinds before it, so
    that no part is empty if there are at least as many items.
    """
    assigned, totals = [0] * len(costs), [0] * parts
    for kind in sorted({*kinds}):
        items = [item for item, own in enumerate(kinds) if own == kind]
        shares = assign([costs[item] for item in items], parts)
        sums = [0] * parts
        for item, share in zip(items, shares, strict=True):
            sums[share] += costs[item]
        dearest = sorted(range(parts), key=sums.__getitem__, reverse=True)
        cheapest = sorted(range(parts), key=totals.__getitem__)
        places = dict(zip(dearest, cheapest, strict=True))
        for item, share in zip(items, shares, strict=True):
            assigned[item] = places[share]
            totals[places[share]] += costs[item]
    return tuple(assigned)


def _largest_differencing(costs: Sequence[int], parts: int) -> list[_Share]:
    empty: list[_Share] = [(0, ())] * (parts - 1)
    # Negated spread, first item and shares of each partition, the most expensive share first. No
    # two share an item, so comparisons end at the first item.
    heap = [(-cost, item, [(cost, (item,)), *empty]) for item, cost in enumerate(costs)]
    heapq.heapify(heap)
    while len(heap) > 1:
        _, first, left = heapq.heappop(heap)
        _, second, right = heapq.heappop(heap)
        pairs = zip(left, reversed(right), strict=True)
        merged = sorted(((a + b, items + more) for (a, items), (b, more) in pairs), reverse=True)
        heapq.heappush(heap, (merged[-1][0] - merged[0][0], min(first, second), merged))
    return heap[0][2]


def _greedy(costs: Sequence[int], parts: int) -> list[_Share]:
    """Assign the most expensive item first, always to the cheapest part."""
    heap = [(0, part) for part in range(parts)]
    items: list[tuple[int, ...]] = [()] * parts
    for item in sorted(range(len(costs)), key=lambda item: -costs[item]):
        cost, part = heapq.heappop(heap)
        items[part] += (item,)
        heapq.heappush(heap, (cost + costs[item], part))
    return [(cost, items[part]) for cost, part in heap]


def linear_cost(sizes: Sizes) -> int:
    """Return the cost `a` of a token in the weight matrices of a model.

    It excludes attention; linear attention costs little. The output layer counts for every token,
    though prompt tokens do not pass through it.
    """
    blocks = sum(
        prod(shape)
        for name, shape in backbone_tensors(sizes)
        if len(shape) == 2 and "embed_tokens" not in name
    )
    weights = blocks + sizes.vocabulary * sizes.hidden
    attending = sum(map(sizes.has_attention, range(sizes.layers)))
    return weights // (2 * max(1, attending) * sizes.heads * sizes.head_size)


def group_cost(
    prompt_length: int, lengths: Sequence[int], linear: int, *, share_prompts: bool = True
) -> int:
    """Return the cost of a group; an integer, so that it is the same on every machine.

    `linear` is the `a` of `linear_cost`. The prompt is computed once for all rows, or once per row.
    """
    rows = sum(_row_cost(prompt_length + length, linear) for length in lengths)
    if not share_prompts:
        return rows
    return rows - (len(lengths) - 1) * _row_cost(prompt_length, linear)


def group_costs(index: BatchIndex, linear: int, *, share_prompts: bool = True) -> list[int]:
    """Return (groups,) the cost of every group of a batch."""
    return [
        group_cost(prompt, index.group_lengths(p), linear, share_prompts=share_prompts)
        for p, prompt in enumerate(index.prompt_lengths)
    ]


def _row_cost(tokens: int, linear: int) -> int:
    return linear * tokens + tokens * tokens
