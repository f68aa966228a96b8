import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppojob_trainer.data.order import PromptOrder, epoch_order

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


@pytest.mark.parametrize("size", [0, -1, 11])
def test_a_batch_that_cannot_be_drawn(size: int) -> None:
    with pytest.raises(ValueError, match=f"size: got {size}: .*; 1 to 10"):
        PromptOrder(10, 0).next_batch(size)


def test_no_rows_and_a_state_of_other_data_are_refused() -> None:
    with pytest.raises(ValueError, match="num_rows: got 0"):
        PromptOrder(0, 0)
    for epoch, cursor in ((0, 11), (-1, 0)):
        with pytest.raises(ValueError, match="data cursor: got epoch"):
            PromptOrder(10, 0).load_state_dict({"epoch": epoch, "cursor": cursor})
