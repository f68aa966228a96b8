from hypothesis import given
from hypothesis import strategies as st

from ppojob_trainer.rows.assignment import assign

COSTS = st.lists(st.integers(0, 10**9), max_size=40)
PARTS = st.integers(1, 9)


def loads(costs: list[int], assigned: tuple[int, ...], parts: int) -> list[int]:
    return [
        sum(cost for cost, part in zip(costs, assigned, strict=True) if part == p)
        for p in range(parts)
    ]


def greedy_loads(costs: list[int], parts: int) -> list[int]:
    sums = [0] * parts
    for cost in sorted(costs, reverse=True):
        sums[sums.index(min(sums))] += cost
    return sums


@given(COSTS, PARTS)
def test_every_item_has_one_part_and_no_part_is_needlessly_empty(costs, parts):
    assigned = assign(costs, parts)
    assert len(assigned) == len(costs)
    assert set(assigned) == set(range(min(parts, len(costs))))
    firsts = [assigned.index(part) for part in sorted(set(assigned))]
    assert firsts == sorted(firsts)


@given(COSTS, PARTS)
def test_the_dearest_part_is_no_dearer_than_the_greedy_one(costs, parts):
    dearest = max(loads(costs, assign(costs, parts), parts))
    assert dearest <= max(greedy_loads(costs, parts))


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.integers(1, 3))
def test_close_to_the_best_of_all_divisions(costs, parts):
    def best(items: list[int], sums: tuple[int, ...]) -> int:
        if not items:
            return max(sums)
        return min(
            best(items[1:], (*sums[:p], sums[p] + items[0], *sums[p + 1 :])) for p in range(parts)
        )

    dearest = max(loads(costs, assign(costs, parts), parts))
    assert dearest <= best(costs, (0,) * parts) * (4 / 3 - 1 / (3 * parts)) + 1e-9


def test_the_differencing_method_on_the_textbook_case():
    # Karmarkar and Karp's rule leaves 8, 7, 6, 5, 4 a difference of 2 where greedy leaves 4.
    costs = [8, 7, 6, 5, 4]
    assert sorted(loads(costs, assign(costs, 2), 2)) == [14, 16]
    assert sorted(greedy_loads(costs, 2)) == [13, 17]
