import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppojob_trainer.engine.packing import plan_micro_batches


def cost(prompts: list[int], groups: list[int], lengths: list[int], batch: list[int]) -> int:
    return sum(lengths[row] for row in batch) + sum(
        prompts[group] for group in {groups[row] for row in batch}
    )


def test_whole_groups_fill_micro_batches_in_order():
    plan = plan_micro_batches([4, 4, 4], [0, 0, 1, 1, 2, 2], [3] * 6, budget=20)
    assert plan == [[0, 1, 2, 3], [4, 5]]


def test_the_fewest_micro_batches_are_evened_out():
    plan = plan_micro_batches([1] * 6, list(range(6)), [9] * 6, budget=50)
    assert plan == [[0, 1, 2], [3, 4, 5]]


def test_a_group_above_the_budget_is_split_into_runs():
    plan = plan_micro_batches([10, 2], [0, 0, 0, 0, 1], [5, 5, 5, 5, 1], budget=20)
    assert plan == [[0, 1], [2, 3], [4]]


def test_a_row_above_the_budget_goes_alone():
    plan = plan_micro_batches([1, 1], [0, 0, 1], [2, 100, 2], budget=10)
    assert plan == [[0], [1], [2]]


def test_rows_of_a_group_meet_wherever_they_stand():
    assert plan_micro_batches([1, 1], [0, 1, 0, 1], [2] * 4, budget=6) == [[0, 2], [1, 3]]


def test_without_sharing_each_row_pays_for_its_prompt():
    shared = plan_micro_batches([10], [0] * 4, [1] * 4, budget=22)
    alone = plan_micro_batches([10], [0] * 4, [1] * 4, budget=22, share_prompts=False)
    assert (shared, alone) == ([[0, 1, 2, 3]], [[0, 1], [2, 3]])


def test_no_rows_make_no_micro_batch():
    assert plan_micro_batches([], [], [], budget=5) == []


def test_a_budget_without_tokens_is_refused():
    with pytest.raises(ValueError, match="budget: got 0"):
        plan_micro_batches([1], [0], [1], budget=0)


@given(
    st.lists(st.tuples(st.integers(1, 30), st.lists(st.integers(0, 30), max_size=6)), max_size=8),
    st.integers(1, 80),
    st.booleans(),
)
def test_every_row_is_in_one_micro_batch_within_the_budget(drawn, budget, share):
    prompts = [prompt for prompt, _ in drawn]
    groups = [group for group, (_, rows) in enumerate(drawn) for _ in rows]
    lengths = [length for _, rows in drawn for length in rows]
    plan = plan_micro_batches(prompts, groups, lengths, budget=budget, share_prompts=share)
    assert sorted(row for batch in plan for row in batch) == list(range(len(lengths)))
    assert all(plan)
    for batch in plan:
        if share:
            size = cost(prompts, groups, lengths, batch)
        else:
            size = sum(lengths[row] + prompts[groups[row]] for row in batch)
        assert size <= budget or len(batch) == 1
    for group, (prompt, rows) in enumerate(drawn):
        if share and prompt + sum(rows) <= budget:
            assert sum(any(groups[row] == group for row in batch) for batch in plan) <= 1
