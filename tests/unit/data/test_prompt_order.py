from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ppojob_trainer.data.order import Mixture, PromptOrder, epoch_order, mixture_problems

rows = st.integers(1, 60)
seeds = st.integers(0, 2**31 - 1)


@given(rows, seeds, st.booleans(), st.data())
def test_a_resumed_order_equals_an_undisturbed_one(num_rows, seed, shuffle, data) -> None:
    size, count = data.draw(st.integers(1, num_rows)), data.draw(st.integers(1, 12))
    sizes = [size] * count
    undisturbed = PromptOrder(num_rows, seed, shuffle=shuffle)
    states, expected = [undisturbed.place], []
    for size in sizes:
        expected.append(undisturbed.next_batch(size))
        states.append(undisturbed.place)
    for stop, state in enumerate(states):
        resumed = PromptOrder(num_rows, seed, shuffle=shuffle)
        resumed.place = state
        if stop < len(sizes):
            assert undisturbed.batches_behind(state, size, count - stop) == expected[stop:]
            assert undisturbed.place == states[-1], "nothing was drawn"
        assert [resumed.next_batch(size) for size in sizes[stop:]] == expected[stop:]


@given(rows, seeds, st.integers(1, 20))
def test_an_epoch_draws_each_row_at_most_once_and_drops_the_rest(num_rows, seed, size) -> None:
    size = min(size, num_rows)
    order = PromptOrder(num_rows, seed)
    drawn = [row for _ in range(num_rows // size) for row in order.next_batch(size)]
    assert order.place[0] == 0
    assert len(set(drawn)) == len(drawn) == num_rows // size * size
    assert set(drawn) <= set(range(num_rows))
    assert order.passes_read((0, num_rows // size * size - size), size) == 0
    assert order.passes_read(order.place, size) == 1
    order.next_batch(size)
    assert order.place == (1, size)
    assert order.passes_read(order.place, size) == 1 + (2 * size > num_rows)


def test_orders_never_change() -> None:
    # Written down once: resumed jobs, also under another NumPy, rely on it.
    assert epoch_order(10, 0, 0).tolist() == [0, 8, 9, 3, 7, 5, 1, 2, 6, 4]
    assert epoch_order(10, 0, 1).tolist() != epoch_order(10, 0, 0).tolist()
    assert epoch_order(10, 1, 0).tolist() != epoch_order(10, 0, 0).tolist()
    mixture = Mixture((4, 6), (3.0, 1.0), 4)
    assert batches_of(mixture, 3) == [[1, 2, 6, 0], [1, 2, 7, 3], [0, 2, 5, 1]]
    unshuffled = PromptOrder(5, 7, shuffle=False)
    assert [unshuffled.next_batch(2) for _ in range(4)] == [[0, 1], [2, 3], [0, 1], [2, 3]]


@st.composite
def mixtures(draw: st.DrawFn) -> Mixture:
    """Sources that can fill their shares."""
    batch = draw(st.integers(1, 12))
    sizes = draw(st.lists(st.integers(batch, 40), min_size=1, max_size=4))
    weights = draw(st.lists(st.floats(0.05, 5), min_size=len(sizes), max_size=len(sizes)))
    numbers = draw(st.lists(st.integers(0, 3), min_size=sum(sizes), max_size=sum(sizes)))
    order = draw(seeds), draw(st.booleans()), draw(st.sampled_from([numbers, []]))
    return Mixture(tuple(sizes), tuple(weights), batch, *order)


def batches_of(mixture: Mixture, count: int) -> list[list[int]]:
    order = PromptOrder(sum(mixture.rows), 0, mixture=mixture)
    return [order.next_batch(mixture.batch) for _ in range(count)]


def source_of(mixture: Mixture, row: int) -> int:
    edges = [sum(mixture.rows[: source + 1]) for source in range(len(mixture.rows))]
    return next(source for source, edge in enumerate(edges) if row < edge)


@given(mixtures())
def test_a_resumed_mixture_equals_an_undisturbed_one(mixture: Mixture) -> None:
    order = PromptOrder(sum(mixture.rows), 0, mixture=mixture)
    for _ in range(20):
        # Another object, which has drawn nothing: its rows can come from the state alone.
        resumed = PromptOrder(sum(mixture.rows), 0, mixture=replace(mixture))
        resumed.place = order.place
        assert resumed.next_batch(mixture.batch) == order.next_batch(mixture.batch)


@given(mixtures())
@example(Mixture((3, 3, 3, 18), (3.0, 0.5, 0.125, 0.125), 3, shuffle=False))
def test_every_batch_has_the_share_of_each_source_and_no_row_twice(mixture: Mixture) -> None:
    in_epoch = sum(mixture.rows) // mixture.batch
    for batch in batches_of(mixture, max(in_epoch, 30)):
        assert len(set(batch)) == len(batch) == mixture.batch
        found = Counter(source_of(mixture, row) for row in batch)
        for source, weight in enumerate(mixture.weights):
            share = mixture.batch * weight / sum(mixture.weights)
            # Less than one prompt at each edge, and one in an epoch for rounded counts.
            assert abs(found[source] - share) < 2 + 1 / in_epoch


@given(mixtures())
def test_a_pass_over_a_source_draws_no_row_twice(mixture: Mixture) -> None:
    seen: dict[int, list[int]] = {source: [] for source in range(len(mixture.rows))}
    for number, batch in enumerate(batches_of(mixture, 40)):
        for source, most in enumerate(mixture.most):
            if most and number % (mixture.rows[source] // most) == 0:
                seen[source] = []
            seen[source] += [row for row in batch if source_of(mixture, row) == source]
            assert len(set(seen[source])) == len(seen[source])


def test_a_small_source_is_read_more_often() -> None:
    batches = batches_of(Mixture((8, 80), (1.0, 1.0), 8, seed=3), 20)
    drawn = Counter(row for batch in batches for row in batch)
    assert {drawn[row] for row in range(8)} == {10}  # 4 of a batch, so twice 8 in 4 batches
    assert {drawn[row] for row in range(8, 88)} == {1}


@pytest.mark.parametrize("descending", [False, True])
def test_a_curriculum_begins_with_what_is_easy_and_leaves_out_by_chance(descending: bool) -> None:
    numbers = [float(row % 7) for row in range(23)]
    mixture = Mixture((23,), (1.0,), 5, 5, difficulties=numbers, descending=descending)
    drawn = batches_of(mixture, 8)
    left_out = []
    for epoch in (drawn[:4], drawn[4:]):
        rows = [row for batch in epoch for row in batch]
        found = [numbers[row] for row in rows]
        assert found == sorted(found, reverse=descending)
        assert len(set(rows)) == 20
        left_out.append(set(range(23)) - set(rows))
    assert left_out[0] != left_out[1]
    assert drawn[:4] != drawn[4:]  # equal ones are shuffled anew


def test_sources_that_cannot_fill_their_share_are_told() -> None:
    lines = list(map(str, mixture_problems(["a", "b", "c"], [2, 90, 90], [5, 1, 1e-6], 8)))
    assert [line.partition(": ")[0] for line in lines] == [
        "spec.data.train[0].weight",
        "spec.data.train[2].weight",
    ]
    assert mixture_problems(["a"], [2], [1], 8) == []
