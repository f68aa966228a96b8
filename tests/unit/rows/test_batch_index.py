import pytest

from ppojob_trainer.rows.batch_index import BatchIndex

INDEX = BatchIndex(
    prompt_lengths=(4, 5, 6), lengths=(1, 2, 3, 4, 5, 6), samples=2, owners=(1, 0, 1)
)


def test_tokens_are_counted_by_part_with_the_prompt_once_a_row():
    assert INDEX.total_tokens == (11, 17, 23)
    assert INDEX.tokens_by_part(INDEX.owners, 3) == [17, 34, 0]


def test_a_selection_is_a_batch_of_its_own():
    assert INDEX.select([2, 0]) == BatchIndex((6, 4), (5, 6, 1, 2), 2, (1, 1))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (((4,), (1, 2, 3), 2, (0,)), "lengths: got 3 rows: 1 groups of 2 have 2"),
        (((4,), (1, 2), 2, (0, 1)), "owners: got 2: one a group is needed; 1"),
        (((4,), (), 0, (0,)), "samples: got 0"),
    ],
)
def test_entries_that_do_not_fit_are_refused(entries, message):
    with pytest.raises(ValueError, match=message):
        BatchIndex(*entries)
