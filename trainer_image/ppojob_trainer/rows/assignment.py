"""Which rank computes which group, so that all are done at about the same time. Pure."""

import heapq
from collections.abc import Sequence

_Share = tuple[int, tuple[int, ...]]  # cost and items of a part


def assign(costs: Sequence[int], parts: int) -> tuple[int, ...]:
    """Divide items over parts so that the dearest part is cheap.

    The largest differencing method (Karmarkar and Karp, The differencing method of set
    partitioning, UC Berkeley report UCB/CSD 82/113, 1982), in its form for many parts: two
    divisions of the greatest spread are laid over each other, the dearest part of the one on the
    cheapest of the other, until one division is left. On few items the greedy rule is better now
    and then; it is tried too, so its bound (Graham, SIAM J. Appl. Math. 17, 1969: at most 4/3 of
    the optimum) holds. Ties are broken by the order of the items.

    Args:
        costs: of each item, not negative; integers, so that sums are exact in any order.
        parts: how many.

    Returns:
        The part of each item. Where there are at least as many items as parts, no part is empty.
        Parts are numbered by their first item.

    Raises:
        ValueError: if there is no part, or a cost is negative.
    """
    if parts < 1:
        raise ValueError(f"parts: got {parts}: items have to go somewhere; must be at least 1")
    if any(cost < 0 for cost in costs):
        raise ValueError(f"costs: got {min(costs)}: must not be negative")
    if not costs:
        return ()
    candidates = _largest_differencing(costs, parts), _greedy(costs, parts)
    shares = min(candidates, key=lambda shares: max(cost for cost, _ in shares))
    assigned = [0] * len(costs)
    for part, items in enumerate(sorted(tuple(sorted(items)) for _, items in shares if items)):
        for item in items:
            assigned[item] = part
    return tuple(assigned)


def _largest_differencing(costs: Sequence[int], parts: int) -> list[_Share]:
    empty: list[_Share] = [(0, ())] * (parts - 1)
    # Spread (negated), first item and shares of each division, dearest share first. No two have an
    # item in common, so comparing never goes further than the first item.
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
    """The dearest item first, always to the cheapest part."""
    heap = [(0, part) for part in range(parts)]
    items: list[tuple[int, ...]] = [()] * parts
    for item in sorted(range(len(costs)), key=lambda item: -costs[item]):
        cost, part = heapq.heappop(heap)
        items[part] += (item,)
        heapq.heappush(heap, (cost + costs[item], part))
    return [(cost, items[part]) for cost, part in heap]
