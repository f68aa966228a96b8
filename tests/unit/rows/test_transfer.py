import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppojob_trainer.rows.transfer import TransferPlan

MEMBERS = 4
PLACES = st.lists(st.tuples(st.integers(0, MEMBERS - 1), st.integers(0, MEMBERS - 1)), max_size=20)


def plan_of(places: list[tuple[int, int]]) -> TransferPlan:
    return TransferPlan(tuple(s for s, _ in places), tuple(d for _, d in places))


@given(PLACES)
def test_every_group_is_kept_or_moved_once_and_both_ends_agree(places):
    plan = plan_of(places)
    moved = [
        (position, source, destination)
        for source in range(MEMBERS)
        for destination, positions in plan.outgoing(source).items()
        for position in positions
    ]
    received = [
        (position, source, destination)
        for destination in range(MEMBERS)
        for source, positions in plan.incoming(destination).items()
        for position in positions
    ]
    assert sorted(moved) == sorted(received)
    assert sorted(moved) == [(p, s, d) for p, (s, d) in enumerate(places) if s != d]


@given(PLACES)
def test_the_way_back_undoes_the_way_there(places):
    plan = plan_of(places)
    assert plan.reversed.reversed == plan
    for member in range(MEMBERS):
        assert plan.reversed.held_by(member) == plan.needed_by(member)
        assert plan.reversed.outgoing(member) == plan.incoming(member)


def test_positions_come_in_batch_order():
    plan = TransferPlan((1, 0, 1, 0), (0, 0, 0, 1))
    assert plan.needed_by(0) == (0, 1, 2)
    assert plan.incoming(0) == {1: [0, 2]}
    assert plan.outgoing(0) == {1: [3]}


def test_a_plan_names_both_ends_of_every_group():
    with pytest.raises(ValueError, match="destinations: got 1: one a group is needed; 2"):
        TransferPlan((0, 0), (0,))
