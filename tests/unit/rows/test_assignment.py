from hypothesis import given
from hypothesis import strategies as st

from ppojob_trainer.rows.assignment import assign, assign_kinds

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


@given(st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, 3)), max_size=20), PARTS)
def test_of_each_kind_the_dearest_part_is_as_cheap_as_of_the_kind_alone(items, parts):
    costs, kinds = [cost for cost, _ in items], [kind for _, kind in items]
    assigned = assign_kinds(costs, kinds, parts)
    assert len(set(assigned)) == min(parts, len(items))
    for kind in set(kinds):
        own = [cost for cost, other in items if other == kind]
        shares = tuple(part for part, other in zip(assigned, kinds, strict=True) if other == kind)
        assert sorted(loads(own, shares, parts)) == sorted(loads(own, assign(own, parts), parts))


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
