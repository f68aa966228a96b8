import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppojob_trainer.engine.micro_batches import plan_micro_batches


def cost(prompts: list[int], groups: list[int], lengths: list[int], batch: list[int]) -> int:
    return sum(lengths[row] for row in batch) + sum(
        prompts[group] for group in {groups[row] for row in batch}
    )


PLANS = {
    "whole groups fill micro-batches in order": (
        ([4, 4, 4], [0, 0, 1, 1, 2, 2], [3] * 6, 20),
        [[0, 1, 2, 3], [4, 5]],
    ),
    "the fewest micro-batches are evened out": (
        ([1] * 6, list(range(6)), [9] * 6, 50),
        [[0, 1, 2], [3, 4, 5]],
    ),
    "a group above the budget is split into runs": (
        ([10, 2], [0, 0, 0, 0, 1], [5, 5, 5, 5, 1], 20),
        [[0, 1], [2, 3], [4]],
    ),
    "a row above the budget goes alone": (([1, 1], [0, 0, 1], [2, 100, 2], 10), [[0], [1], [2]]),
    "rows of a group meet wherever they stand": (
        ([1, 1], [0, 1, 0, 1], [2] * 4, 6),
        [[0, 2], [1, 3]],
    ),
    "a shared prompt is paid for once": (([10], [0] * 4, [1] * 4, 22), [[0, 1, 2, 3]]),
    "no rows make no micro-batch": (([], [], [], 5), []),
}


@pytest.mark.parametrize("name", PLANS)
def test_plans(name):
    (prompts, groups, lengths, budget), expected = PLANS[name]
    assert plan_micro_batches(prompts, groups, lengths, budget=budget) == expected


def test_without_sharing_each_row_pays_for_its_prompt():
    alone = plan_micro_batches([10], [0] * 4, [1] * 4, budget=22, share_prompts=False)
    assert alone == [[0, 1], [2, 3]]


@pytest.mark.parametrize("share", [True, False])
def test_groups_that_are_to_stay_whole_are(share: bool):
    plan = plan_micro_batches(
        *([[4, 4, 4], [0, 0, 1, 1, 2, 2], [9, 9, 1, 1, 1, 1]]),
        budget=20,
        share_prompts=share,
        whole_groups=True,
    )
    assert plan == [[0, 1], [2, 3, 4, 5]]


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
