from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppojob_trainer.data.order import Mixture, Passes, PromptOrder, epoch_order, mixture_problems

rows = st.integers(1, 60)
seeds = st.integers(0, 2**31 - 1)


@given(rows, seeds, st.booleans(), st.data())
def test_going_on_from_any_state_equals_an_undisturbed_run(num_rows, seed, shuffle, data) -> None:
    sizes = data.draw(st.lists(st.integers(1, num_rows), min_size=1, max_size=12))
    undisturbed = PromptOrder(num_rows, seed, shuffle=shuffle)
    expected = []
    states = [undisturbed.state_dict()]
    for size in sizes:
        expected.append(undisturbed.next_batch(size))
        states.append(undisturbed.state_dict())
    for stop, state in enumerate(states):
        resumed = PromptOrder(num_rows, seed, shuffle=shuffle)
        resumed.load_state_dict(state)
        assert [resumed.next_batch(size) for size in sizes[stop:]] == expected[stop:]


@given(rows, seeds, st.integers(1, 20))
def test_an_epoch_draws_each_row_at_most_once_and_drops_the_rest(num_rows, seed, size) -> None:
    size = min(size, num_rows)
    order = PromptOrder(num_rows, seed)
    batches = [order.next_batch(size) for _ in range(num_rows // size)]
    assert order.epoch == 0
    drawn = [row for batch in batches for row in batch]
    assert len(set(drawn)) == len(drawn) == num_rows // size * size
    order.next_batch(size)
    assert order.state_dict() == {"epoch": 1, "cursor": size}


@given(rows, seeds, st.integers(0, 5))
def test_an_epochs_order_is_a_permutation(num_rows: int, seed: int, epoch: int) -> None:
    assert sorted(epoch_order(num_rows, seed, epoch)) == list(range(num_rows))


def test_the_order_of_a_seed_never_changes() -> None:
    # Written down once: resumed jobs, also under another NumPy, rely on it.
    assert epoch_order(10, 0, 0).tolist() == [0, 8, 9, 3, 7, 5, 1, 2, 6, 4]
    assert epoch_order(10, 0, 1).tolist() != epoch_order(10, 0, 0).tolist()
    assert epoch_order(10, 1, 0).tolist() != epoch_order(10, 0, 0).tolist()


def test_without_shuffling_rows_come_as_they_lie() -> None:
    order = PromptOrder(5, 7, shuffle=False)
    assert [order.next_batch(2) for _ in range(4)] == [[0, 1], [2, 3], [0, 1], [2, 3]]


def test_a_state_of_other_data_is_refused() -> None:
    for epoch, cursor in ((0, 11), (-1, 0)):
        with pytest.raises(ValueError, match="data cursor: got epoch"):
            PromptOrder(10, 0).load_state_dict({"epoch": epoch, "cursor": cursor})


@st.composite
def mixtures(draw: st.DrawFn) -> Mixture:
    """Sources that can fill their shares."""
    batch = draw(st.integers(1, 12))
    sizes = draw(st.lists(st.integers(batch, 40), min_size=1, max_size=4))
    weights = draw(st.lists(st.floats(0.05, 5), min_size=len(sizes), max_size=len(sizes)))
    numbers = draw(st.lists(st.integers(0, 3), min_size=sum(sizes), max_size=sum(sizes)))
    passes = Passes(
        draw(seeds), shuffle=draw(st.booleans()), difficulties=draw(st.sampled_from([numbers, []]))
    )
    return Mixture(tuple(sizes), tuple(weights), batch, passes)


def batches_of(mixture: Mixture, count: int) -> list[list[int]]:
    order = PromptOrder(sum(mixture.rows), 0, mixture=mixture)
    return [order.next_batch(mixture.batch) for _ in range(count)]


def source_of(mixture: Mixture, row: int) -> int:
    edges = [sum(mixture.rows[: source + 1]) for source in range(len(mixture.rows))]
    return next(source for source, edge in enumerate(edges) if row < edge)


@given(mixtures())
def test_a_mixture_goes_on_from_any_state_like_an_undisturbed_run(mixture: Mixture) -> None:
    order = PromptOrder(sum(mixture.rows), 0, mixture=mixture)
    states, expected = [order.state_dict()], []
    for _ in range(20):
        expected.append(order.next_batch(mixture.batch))
        states.append(order.state_dict())
    for stop, state in enumerate(states[:-1]):
        # Another object, which has drawn nothing: what it says can come from the state alone.
        fresh = Mixture(mixture.rows, mixture.weights, mixture.batch, mixture.passes)
        resumed = PromptOrder(sum(mixture.rows), 0, mixture=fresh)
        resumed.load_state_dict(state)
        assert resumed.next_batch(mixture.batch) == expected[stop]


@given(mixtures())
def test_no_batch_of_a_mixture_holds_a_row_twice(mixture: Mixture) -> None:
    for batch in batches_of(mixture, 30):
        assert len(set(batch)) == len(batch) == mixture.batch


@given(mixtures())
def test_every_batch_has_the_share_of_each_source(mixture: Mixture) -> None:
    in_epoch = sum(mixture.rows) // mixture.batch
    for batch in batches_of(mixture, in_epoch):
        found = Counter(source_of(mixture, row) for row in batch)
        for source, weight in enumerate(mixture.weights):
            share = mixture.batch * weight / sum(mixture.weights)
            # A prompt of its own place in the sequence, one of each edge, one of rounded counts.
            assert abs(found[source] - share) < 2 + mixture.batch / in_epoch


@given(mixtures())
def test_a_pass_over_a_source_draws_no_row_twice(mixture: Mixture) -> None:
    seen: dict[int, list[int]] = {source: [] for source in range(len(mixture.rows))}
    for number, batch in enumerate(batches_of(mixture, 40)):
        for source, most in enumerate(mixture.most):
            if most and number % (mixture.rows[source] // most) == 0:
                seen[source] = []
            seen[source] += [row for row in batch if source_of(mixture, row) == source]
            assert len(set(seen[source])) == len(seen[source])


def test_a_small_source_is_gone_through_more_often() -> None:
    mixture = Mixture((8, 80), (1.0, 1.0), 8, Passes(3))
    drawn = Counter(row for batch in batches_of(mixture, 20) for row in batch)
    assert {drawn[row] for row in range(8)} == {10}  # 4 of a batch, so twice 8 in 4 batches
    assert {drawn[row] for row in range(8, 88)} == {1}


def test_a_curriculum_begins_with_what_is_easy_and_leaves_out_by_chance() -> None:
    numbers = [float(row % 7) for row in range(23)]
    for descending in (False, True):
        passes = Passes(5, difficulties=numbers, descending=descending)
        drawn = batches_of(Mixture((23,), (1.0,), 5, passes), 8)
        left_out = []
        for epoch in (drawn[:4], drawn[4:]):
            rows = [row for batch in epoch for row in batch]
            told = [numbers[row] for row in rows]
            assert told == sorted(told, reverse=descending)
            assert len(set(rows)) == 20
            left_out.append(set(range(23)) - set(rows))
        assert left_out[0] != left_out[1]
        assert drawn[:4] != drawn[4:]  # equal ones are shuffled anew


def test_the_order_of_a_mixture_never_changes() -> None:
    # Written down once, as that of a seed.
    mixture = Mixture((4, 6), (3.0, 1.0), 4, Passes(0))
    assert batches_of(mixture, 3) == [[1, 2, 6, 0], [1, 2, 7, 3], [0, 2, 5, 1]]


def test_sources_that_cannot_fill_their_share_are_told() -> None:
    lines = list(map(str, mixture_problems(["a", "b", "c"], [2, 90, 90], [5, 1, 1e-6], 8)))
    assert [line.partition(": ")[0] for line in lines] == [
        "spec.data.train[0].weight",
        "spec.data.train[2].weight",
    ]
    assert mixture_problems(["a"], [2], [1], 8) == []
